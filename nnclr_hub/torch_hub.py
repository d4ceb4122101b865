"""The entry points of hubconf.py for torch.hub: bare timm backbones with verified weights.

backbone = torch.hub.load(CHECKOUT, "nnclr_resnet50", source="local", weights="./my-model")
backbone(x)                                     # (B, 3, H, W) normalized -> (B, D)
backbone.nnclr_info["transform"]                # an image -> (3, S, S) normalized
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from nnclr_hub.encoder.backbones import backbone_from_folder, backbone_with_weights, create_backbone, timm_name
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import InvalidRequest, UnknownModel, WeightsMismatch
from nnclr_hub.hub.layout import read_config, read_weights
from nnclr_hub.hub.registry import ARCHITECTURES, MODELS, ModelInfo
from nnclr_hub.hub.sources import resolve

EntryPoint = Callable[..., nn.Module]
_HELP = """{title}

    Args:
        pretrained: load weights; False returns a network with random weights, unless weights are named.
        weights: the source: {default}, a name of list_models(), hf-hub:org/repo@revision,
            a model folder, its .safetensors file, file://..., or https://...-<sha256>.safetensors
            with its config.json next to it.
        timm_kwargs: passed to timm, such as num_classes=10, in_chans=1, features_only=True or
            img_size=96; timm adapts the layers that these change.

    Returns:
        The backbone in evaluation mode: (B, 3, H, W) normalized float -> (B, {dim}). Its nnclr_info
        contains "transform" (an image -> (3, H, W) normalized), "source" and "provenance".

    Raises:
        UnknownModel: the weights do not exist; they are never replaced by random ones.
        TamperedModel: a file differs from the pinned one.
        WeightsMismatch: the weights are incomplete or of another architecture.

    Example:
        backbone = torch.hub.load("ORG/nnclr_hub:TAG", "{name}", trust_repo=True{example})
    """


def entry_points() -> dict[str, EntryPoint]:
    """Return every entry point by name."""
    points = {}
    for name, architecture in ARCHITECTURES.items():
        title = f"{timm_name(architecture)}, a network of the paper. It has no published weights yet; name a source."
        text = {"title": title, "default": "none yet", "dim": "D", "example": ', weights="./my-model"'}
        points[name] = _entry_point(name, architecture, None, text)
    for name, model in MODELS.items():
        text = {"title": _title(model), "default": f"None for {name}", "dim": str(model.embed_dim), "example": ""}
        points[name] = _entry_point(name, model.architecture, name, text)
    return points


def _title(model: ModelInfo) -> str:
    measured = ", ".join(f"{name} {value:.3f}" for name, value in model.metrics.items())
    return (
        f"{model.architecture}, {model.parameters / 1e6:.1f} M weights, for {model.input.size} pixels.\n\n"
        f"    Recipe: {model.recipe}.\n    Data: {model.data}.\n    Measured: {measured}.\n"
        f"    License of the weights: {model.license}."
    )


def _entry_point(name: str, architecture: str, default: str | None, text: dict[str, str]) -> EntryPoint:
    def load(
        *, pretrained: bool = True, weights: str | Path | None = None, progress: bool = True, **timm_kwargs: Any
    ) -> nn.Module:
        if weights is not None:
            return _trained(str(weights), name, architecture, progress, timm_kwargs)
        if not pretrained:
            own = resolve(name).config.model_args if name in MODELS else {}
            return create_backbone(architecture, model_args={**own, **timm_kwargs}).eval()
        if default is None:
            raise UnknownModel(
                f"{name} does not have published weights yet; pass weights=SOURCE, such as a model folder, or "
                f"pretrained=False for random weights. Entry points with weights: {', '.join(MODELS)}."
            )
        return _trained(default, name, architecture, progress, timm_kwargs)

    load.__name__ = load.__qualname__ = name
    load.__doc__ = _HELP.format(name=name, **text)
    return load


def _trained(source: str, name: str, architecture: str, progress: bool, timm_kwargs: dict[str, Any]) -> nn.Module:
    found = resolve(source, progress=progress)
    if found.folder is None or found.seed is not None:
        raise InvalidRequest(f"weights of {name} must be a model folder or a published name, got {source}.")
    config = read_config(found.folder)
    if config.architecture != timm_name(architecture):
        raise WeightsMismatch(f"{source} is a {config.architecture}, not the {timm_name(architecture)} of {name}.")
    state = read_weights(found.folder, found.weights)
    backbone = backbone_with_weights(config.architecture, state, source, model_args=config.model_args)
    if timm_kwargs:  # timm ignores missing keys when it adapts layers; load_state has excluded them
        backbone = backbone_from_folder(found.folder, {**config.model_args, **timm_kwargs}, found.weights)
    transform = EvalTransform(Preprocessing.of_model(config))
    backbone.nnclr_info = {"source": source, "transform": transform, "provenance": dict(config.nnclr)}  # type: ignore[assignment]
    return backbone.eval()
