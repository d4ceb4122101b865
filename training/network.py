"""The network of a run: build the learner from its recipe, place it on its device, start from an encoder (--init)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from nnclr_hub.encoder.backbones import (
    backbone_from_folder,
    create_backbone,
    input_side,
    is_convolutional,
    load_state,
    published_cfg,
    sized,
    timm_name,
)
from nnclr_hub.encoder.network_output import vector_length
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import HEADS, read_weights
from nnclr_hub.hub.sources import resolve
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
from nnclr_hub.publish.provenance import license_of

from .cpu import use_plain_attention, use_products
from .distributed import Ranks, synchronize_norms
from .recipes import Recipe
from .recipes.recipe import as_text

BOTH = ("projection", "prediction")  # heads


@dataclass(frozen=True)
class Tables:
    """What a learner knows of the images by their numbers.

    teacher: (N, D) float32, vectors of the teacher.
    same, not_same: (N, C) int64, see `SupportSet`.
    groups: (N,) int64, see `Learner`.
    """

    teacher: Tensor | None = None
    same: Tensor | None = None
    not_same: Tensor | None = None
    groups: Tensor | None = None


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
        **({} if tables.groups is None else {"groups": tables.groups, "forget": recipe.forget}),
    )


def _objective(name: str) -> Objective | None:
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
    if is_convolutional(learner.backbone):  # the layout of the evaluated encoder
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
    """Build the backbone on the meta device, without memory for weights, to find errors early."""
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
    return create_backbone(recipe.backbone, model_args=arguments, image_size=recipe.image_size)


# ------------------------------------------------------------------------------ --init


@dataclass(frozen=True)
class InitialEncoder:
    """An encoder to start from.

    source: as given.
    architecture: its name in timm.
    channels: widths of a ResNet's stages; empty for timm's widths.
    folder: its model folder; None for timm's pretrained weights.
    preprocessing: of its input; the run uses its channels, mean and std, unless settings change them.
    license: of the weights, if it is stated.
    """

    source: str
    architecture: str
    channels: tuple[int, ...]
    folder: Path | None
    preprocessing: Preprocessing
    license: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a recipe that keep the size of its input and its heads."""
        size = self.preprocessing.input_size
        sizes = {"image_size": size, "eval_size": size, "eval_crop": self.preprocessing.crop_pct, "pack_size": 2 * size}
        return {**sizes, **self._heads()}

    def _heads(self) -> dict[str, Any]:
        """Return the settings of its heads; {} if it has none, or if no setting describes them."""
        heads = read_heads(self.folder)
        first, second = (heads.get(head, {}) for head in BOTH)
        projection, prediction = ([one.shape for one in head.values() if one.ndim == 2] for head in (first, second))
        norms = sum(name.endswith("running_mean") for name in first)
        scales = sum(name.endswith("weight") for name in first) - len(projection)
        last = "none" if norms < len(projection) else "affine" if scales == norms else "plain"
        known = (name for name, one in PROJECTIONS.items() if (one.layers, one.last_norm) == (len(projection), last))
        if (name := next(known, None)) is None:
            return {}
        found = {"projection": name, "projection_hidden": projection[0][0], "projection_dim": projection[-1][0]}
        if not prediction:
            return {**found, "prediction": "none"}
        return {**found, "prediction": "paper", "prediction_hidden": prediction[0][0]}


def read_heads(folder: Path | None) -> dict[str, dict[str, Tensor]]:
    """Return the weights of the heads in a model folder, by head; {} without any."""
    heads: dict[str, dict[str, Tensor]] = {}
    if folder is not None and (folder / HEADS).is_file():
        for name, value in read_weights(folder, HEADS).items():
            head, _, key = name.partition(".")
            heads.setdefault(head, {})[key] = value
    return heads


def find_initial_encoder(source: str) -> InitialEncoder:
    """Resolve a source."""
    if (Path(source) / "run.json").is_file() and (Path(source) / "encoder").is_dir():
        raise InvalidRequest(f"--init {source} is a run folder; use its encoder, {Path(source) / 'encoder'}.")
    found = resolve(source)
    if found.seed is not None:
        raise InvalidRequest(f"--init {source} has untrained weights; use --init none to start from random weights.")
    if found.folder is None:
        return InitialEncoder(
            source, found.architecture, (), None, Preprocessing.from_pretrained_cfg(published_cfg(found.architecture))
        )
    arguments = dict(found.config.model_args)
    arguments.pop("img_size", None)
    arguments.pop("in_chans", None)
    channels = tuple(arguments.pop("channels", ()))
    if arguments:
        raise InvalidRequest(
            f"--init {source} was built with {arguments}, which no setting of a recipe describes; use an encoder with "
            "timm's standard shape."
        )
    preprocessing, license = Preprocessing.of_model(found.config), license_of(found.config)
    return InitialEncoder(source, found.architecture, channels, found.folder, preprocessing, license)


def adopt(recipe: Recipe, start: InitialEncoder, console: Console) -> Recipe:
    """Return the recipe with the encoder's network, channels and transform; --set must not name a different network."""
    given = start.preprocessing
    changes: dict[str, Any] = {"eval_interpolation": given.interpolation, "eval_crop_mode": given.crop_mode}
    if not {"in_chans", "reading"} & set(recipe.fixed):
        changes |= {"in_chans": given.in_chans, "reading": str(given.reading), "mean": given.mean, "std": given.std}
    elif given.in_chans not in (3, recipe.in_chans):
        raise InvalidRequest(
            f"--init {start.source} takes {given.in_chans} channels, and the run has {recipe.in_chans}; weights are "
            "adapted from 3 channels only."
        )
    else:
        adapted = given.with_channels(recipe.in_chans)
        changes |= {"mean": adapted.mean, "std": adapted.std}
    recipe = dataclasses.replace(recipe, **{name: one for name, one in changes.items() if name not in recipe.fixed})
    if given.input_size != recipe.eval_size:
        console.print(
            f"note: The encoder in --init takes {given.input_size} pixels, and the exported one will take "
            f"{recipe.eval_size}; --set eval_size changes that."
        )
    ours = (timm_name(recipe.backbone).partition(".")[0], recipe.channels)
    theirs = (start.architecture.partition(".")[0], start.channels)
    if ours == theirs:
        return recipe
    if {"backbone", "channels"} & set(recipe.fixed):
        shown = [f"{name} {list(widths)}" if widths else name for name, widths in (theirs, ours)]
        raise InvalidRequest(
            f"--init {start.source} is a {shown[0]}, but --set asks for a {shown[1]}. Leave backbone and channels out, "
            "or use an encoder of that architecture."
        )
    shown = [f"{name} {list(widths) or ''}".strip() for name, widths in (theirs, ours)]
    console.print(f"backbone: using {shown[0]} from --init instead of {shown[1]}")
    return dataclasses.replace(recipe, backbone=theirs[0], channels=start.channels)


def load_initial_encoder(learner: Learner, start: InitialEncoder, console: Console, in_chans: int = 3) -> None:
    """Load the backbone, and the heads if the folder has heads of the recipe's shapes.

    Args:
        in_chans: number of channels of the run.
    """
    side = input_side(learner.backbone)
    if start.folder is None:
        adapted = {"in_chans": in_chans} if in_chans != 3 else {}
        trained = create_backbone(start.architecture, model_args=adapted, image_size=side, pretrained=True)
    else:
        arguments = {"img_size": side} if side and sized(start.architecture) else {}
        if in_chans != start.preprocessing.in_chans:
            arguments["in_chans"] = in_chans  # timm repeats and scales the weights of the first convolution
        trained = backbone_from_folder(start.folder, arguments)
    load_state(learner.backbone, trained.state_dict(), start.source)
    saved = read_heads(start.folder)
    heads = [name for name in BOTH if _load_head(getattr(learner, name), saved.get(name, {}))]
    if learner.momentum is not None:
        learner.momentum.reset(learner.online)
    loaded = f"and its {' and '.join(heads)} head" + ("s" if len(heads) > 1 else "") if heads else "with new heads"
    console.print(f"starting from {start.source} {loaded}")


def _load_head(head: nn.Module, saved: dict[str, Tensor]) -> bool:
    expected = {key: value.shape for key, value in head.state_dict().items()}
    if not expected or {key: value.shape for key, value in saved.items()} != expected:
        return False
    head.load_state_dict(saved)
    return True
