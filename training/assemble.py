"""Build the learner of a run from its recipe, and place it on its device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from inspect import signature

import torch
from torch import Tensor, nn

from nnclr_hub.encoder.backbones import create_backbone, is_convolutional, sized, timm_name
from nnclr_hub.encoder.network_output import vector_length
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.method import (
    LEARNERS,
    METHODS,
    OBJECTIVES,
    PREDICTIONS,
    PROJECTIONS,
    SUPPORT_SETS,
    Learner,
    Objective,
    PredictionHead,
    ProjectionHead,
    Prototypes,
    SupportSet,
)

from .cpu import cpu_features, use_plain_attention
from .distributed import Ranks, synchronize_norms
from .recipes import Recipe
from .recipes.settings import as_text
from .small_maps import use_products


def choose_precision(precision: str, where: torch.device) -> str:
    """Return bf16 where the hardware multiplies it, fp16 on other GPUs, and fp32 on other CPUs."""
    if precision != "auto":
        return precision
    if where.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    features = cpu_features()
    return "bf16" if features.get("avx512_bf16") or features.get("amx_bf16") else "fp32"


@dataclass(frozen=True)
class Tables:
    """What a learner knows of the images by their numbers.

    teacher: (N, D) float32, vectors of the teacher.
    same, not_same: (N, C) int64, see `SupportSet`.
    """

    teacher: Tensor | None = None
    same: Tensor | None = None
    not_same: Tensor | None = None


def build_learner(recipe: Recipe, tables: Tables = Tables()) -> Learner:
    """Build backbone, heads and support set from the recipe and its method."""
    method = METHODS[recipe.method]
    choices = {
        name: getattr(recipe, name) for name in ("projection", "prediction") if getattr(recipe, name) != "method"
    }
    if method.prediction == "prototypes":  # they are part of the objective, not a head that can be left out
        choices.pop("prediction", None)
    if tables.teacher is not None and "projection" not in recipe.fixed:
        choices.pop("projection", None)
    method = dataclasses.replace(method, **choices)
    backbone = _backbone(recipe)
    width = vector_length(backbone)
    projection, d = None, width
    if method.projection != "none":
        shape = PROJECTIONS[method.projection]
        d = recipe.projection_dim or shape.out_dim
        if tables.teacher is not None:
            d = tables.teacher.shape[1]
        hidden = recipe.projection_hidden or shape.hidden_dim
        projection = ProjectionHead(width, hidden, d, layers=shape.layers, last_norm=shape.last_norm)
    prediction = None
    if method.prediction == "prototypes":
        prediction = Prototypes(d, recipe.prototypes)
    elif method.prediction != "none":
        prediction = PredictionHead(d, recipe.prediction_hidden or PREDICTIONS[method.prediction])
    return LEARNERS[recipe.learner](
        backbone,
        method,
        projection,
        prediction,
        _support_set(recipe, d, tables) if method.uses_support_set else None,
        objective=_objective(recipe.objective),
        temperature=recipe.temperature,
        target_temperature=recipe.target_temperature,
        mean_of=recipe.mean_of,
        sigreg_weight=recipe.sigreg_weight,
        transposed_term=recipe.transposed_term,
        chunk=recipe.chunk,
        both_views=recipe.enqueue == "both",
        **({} if tables.teacher is None else {"teacher": tables.teacher}),
    )


def _objective(name: str) -> Objective | None:
    """Return the objective of a plug-in; None for those of the methods.

    Raises:
        InvalidRequest: it does not take the arguments of an objective.
    """
    found = OBJECTIVES.get(name)
    if found is not None:
        try:
            signature(found).bind(None, None, 0.1, gather=None)
        except (TypeError, ValueError) as error:  # ValueError: a function in C, such as torch.dot, has no signature
            raise InvalidRequest(
                f"The objective {name} must be a function (targets, predictions, temperature, *, gather), but it "
                f"does not take these arguments ({error})."
            ) from error
    return found


def place_learner(learner: Learner, recipe: Recipe, ranks: Ranks) -> Learner:
    """Move the learner to its device, with the recipe's memory layout, synchronized norms and compilation."""
    learner = learner.to(ranks.where)
    if recipe.channels_last and is_convolutional(learner.backbone):  # the layout of the evaluated encoder
        learner = learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if ranks.where.type == "cpu":
        use_products(learner)
        use_plain_attention(learner)
    if ranks.world > 1:
        synchronize_norms(learner, ranks.where)
    if recipe.compile:
        networks = [learner.backbone, *([] if learner.momentum is None else [learner.target[0]])]
        for network in networks:  # every size occurs at every step: one program per size is faster than a general one
            network.compile(dynamic=False)
    return learner


def check_network(recipe: Recipe) -> None:
    """Build the backbone on the meta device, without memory for weights, to find errors early.

    Raises:
        UnknownModel: an unknown architecture.
        InvalidRequest: an architecture that does not accept these settings.
    """
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        backbone = _backbone(recipe)
    patches = getattr(backbone, "patch_embed", None)
    if patches is not None and hasattr(patches, "patch_size"):
        side = int(patches.patch_size[0])  # type: ignore[index]
        sizes = {"image_size": True, "local_size": recipe.local_crops > 0, "early_size": recipe.early_share > 0}
        for name, used in sizes.items():
            if used and getattr(recipe, name) % side:
                raise InvalidRequest(
                    f"{name} must be a multiple of {side}, the patch size of {recipe.backbone}; got "
                    f"{getattr(recipe, name)}."
                )


def _support_set(recipe: Recipe, d: int, tables: Tables) -> SupportSet:
    columns = {name: one for name in ("same", "not_same") if (one := getattr(tables, name)) is not None}
    return SUPPORT_SETS[recipe.support_set](
        recipe.queue_size,
        d,
        mask_own=recipe.mask_own,
        pick=recipe.pick,
        k=recipe.k,
        soft_temperature=recipe.soft_temperature,
        seed=recipe.seed,
        **columns,
    )


def _backbone(recipe: Recipe) -> nn.Module:
    """Build the network to train, with stochastic depth and, for views of several sizes, resizable positions."""
    arguments = dict(recipe.model_args)
    if sized(recipe.backbone) and recipe.eval_size != recipe.image_size:
        raise InvalidRequest(
            f"eval_size must equal image_size ({recipe.image_size}) for {recipe.backbone}, whose input size is fixed; "
            f"got {recipe.eval_size}."
        )
    if recipe.channels and not timm_name(recipe.backbone).startswith(("resnet", "nnclr_resnet")):
        raise InvalidRequest(
            f"channels={as_text(recipe.channels)} sets the widths of a ResNet, but {recipe.backbone} is not a ResNet; "
            "use --set channels= for timm's widths."
        )
    several = recipe.local_crops > 0 or recipe.early_share > 0
    if recipe.drop_path:
        arguments["drop_path_rate"] = recipe.drop_path
    if several and sized(recipe.backbone):
        arguments["dynamic_img_size"] = True
    backbone = create_backbone(recipe.backbone, model_args=arguments, image_size=recipe.image_size)
    if recipe.freeze_patches:
        patches = getattr(backbone, "patch_embed", None)
        if patches is None:
            raise InvalidRequest(
                f"freeze_patches=true needs a vision transformer, but {recipe.backbone} has no patch projection; "
                "leave it out."
            )
        patches.requires_grad_(False)
    return backbone
