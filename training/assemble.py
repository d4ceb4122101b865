"""Build the parts of a run from its recipe: sizes that fit the data, a precision, a learner."""

from __future__ import annotations

import dataclasses
from inspect import signature
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from nnclr_hub.encoder.backbones import create_backbone, is_convolutional, sized, timm_name
from nnclr_hub.encoder.network_output import vector_length
from nnclr_hub.errors import InvalidRequest, NoImages
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

from .checkpoint import SHORTENED
from .cpu import cpu_features, use_plain_attention
from .distributed import Ranks, synchronize_norms
from .recipes import Recipe
from .recipes.settings import as_text
from .small_maps import use_products

LEAST_IN_BF16 = 16  # pixels of a view; see `resolve_precision`


def fit_to_data(recipe: Recipe, images: int, labels: np.ndarray, world: int, console: Console) -> Recipe:
    """Shrink the batch so that an epoch has at least four steps, and the queue to the number of images.

    Raises:
        NoImages: too few images to learn from.
        InvalidRequest: an option needs labels and the data has none, or the ranks cannot share the batch.
    """
    require_images(images, world, "readable images")
    if recipe.pick == "oracle":
        require_labels(labels)
    changes: dict[str, Any] = {"batch_size": recipe.batch_for(images)}
    if recipe.queue_size > images:
        changes["queue_size"] = images
    if recipe.support_set == "current_encoder":
        changes["queue_size"] = changes.get("queue_size", recipe.queue_size) // world * world
    if recipe.k > changes.get("queue_size", recipe.queue_size):
        changes["k"] = changes.get("queue_size", recipe.queue_size)
    if 0 < recipe.epochs <= recipe.warmup_epochs:  # the rate would only rise and never fall
        changes["warmup_epochs"] = recipe.epochs / SHORTENED
    unused = () if METHODS[recipe.method].uses_support_set else ("queue_size", "k")
    for setting, value in changes.items():
        if value != getattr(recipe, setting) and setting not in unused:
            what = f"{recipe.epochs:g} epochs" if setting == "warmup_epochs" else f"{images} images"
            console.print(
                f"{setting}: {getattr(recipe, setting)} is too large for {what}; using {value}", highlight=False
            )
    recipe = dataclasses.replace(recipe, **changes)
    if recipe.batch_size % (world * recipe.accumulate):
        raise InvalidRequest(
            f"batch_size={recipe.batch_size} cannot be divided among {world} processes in {recipe.accumulate} parts; "
            f"use a multiple of {world * recipe.accumulate}."
        )
    return recipe


def require_images(images: int, world: int, kind: str = "images") -> None:
    """Raise NoImages, whose message calls them `kind`, if there are too few images for the processes of a run."""
    if images < 8 * world:
        raise NoImages(
            f"{images} {kind} are too few to learn from; provide at least {8 * world}, better a few thousand."
        )


def require_labels(labels: np.ndarray) -> None:
    """Raise InvalidRequest unless some of the (N,) int64 labels are known, as pick=oracle requires."""
    if not (labels >= 0).any():
        raise InvalidRequest(
            "pick=oracle needs labels, and the images have none. Put the images into one folder per class, or use "
            "another pick."
        )


def choose_precision(precision: str, where: torch.device) -> str:
    """Return bf16 where the hardware multiplies it, fp16 on other GPUs, and fp32 on other CPUs."""
    if precision != "auto":
        return precision
    if where.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    features = cpu_features()
    return "bf16" if features.get("avx512_bf16") or features.get("amx_bf16") else "fp32"


def resolve_precision(recipe: Recipe, where: torch.device, console: Console) -> Recipe:
    """Replace precision "auto", and use fp32 where bf16 would compute wrong gradients.

    oneDNN in torch 2.15 computes wrong gradients in bf16 on a CPU for a 3 x 3 convolution of stride 2 over a single
    pixel. The last stage of a ResNet has one for views of 16 pixels.
    """
    precision = choose_precision(recipe.precision, where)
    if precision == "bf16" and where.type == "cpu" and min(recipe.view_sizes) <= LEAST_IN_BF16:
        console.print(
            f"precision: using fp32, because bf16 on a CPU fails for views of {min(recipe.view_sizes)} pixels",
            highlight=False,
        )
        precision = "fp32"
    return dataclasses.replace(recipe, precision=precision)


def build_learner(recipe: Recipe) -> Learner:
    """Build backbone, heads and support set from the recipe and its method."""
    method = METHODS[recipe.method]
    choices = {
        name: getattr(recipe, name) for name in ("projection", "prediction") if getattr(recipe, name) != "method"
    }
    if method.prediction == "prototypes":  # they are part of the objective, not a head that can be left out
        choices.pop("prediction", None)
    method = dataclasses.replace(method, **choices)
    backbone = _backbone(recipe)
    width = vector_length(backbone)
    projection, d = None, width
    if method.projection != "none":
        shape = PROJECTIONS[method.projection]
        d = recipe.projection_dim or shape.out_dim
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
        _support_set(recipe, d) if method.uses_support_set else None,
        objective=_objective(recipe.objective),
        temperature=recipe.temperature,
        target_temperature=recipe.target_temperature,
        mean_of=recipe.mean_of,
        sigreg_weight=recipe.sigreg_weight,
        transposed_term=recipe.transposed_term,
        chunk=recipe.chunk,
        both_views=recipe.enqueue == "both",
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


def _support_set(recipe: Recipe, d: int) -> SupportSet:
    return SUPPORT_SETS[recipe.support_set](
        recipe.queue_size,
        d,
        mask_own=recipe.mask_own,
        pick=recipe.pick,
        k=recipe.k,
        soft_temperature=recipe.soft_temperature,
        seed=recipe.seed,
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
