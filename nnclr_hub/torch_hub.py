"""What hubconf.py offers to torch.hub: bare timm backbones with verified weights.

backbone = torch.hub.load(CHECKOUT, "nnclr_resnet50", source="local", weights="./my-model")
backbone(x)                                     # (B, 3, H, W) normalised -> (B, D)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from nnclr_hub.encoder.backbones import backbone_from_folder, create_backbone, timm_name
from nnclr_hub.encoder.preprocess import EvalTransform, Preprocessing
from nnclr_hub.errors import InvalidRequest, UnknownModel, WeightsMismatch
from nnclr_hub.hub.layout import read_config
from nnclr_hub.hub.registry import MODELS
from nnclr_hub.hub.sources import resolve

EntryPoint = Callable[..., nn.Module]
# architectures of the paper; weights of our own for them are not published yet
ARCHITECTURES = {
    "nnclr_resnet50": "resnet50",
    "nnclr_vit_small": "vit_small",
    "nnclr_vit_base": "vit_base",
    "nnclr_vit_base_patch8": "vit_base_patch8",
}
_HELP = """{title}

    Args:
        pretrained: load weights; False gives a fresh network, unless weights are named.
        weights: a source: {default}, a model folder, hf-hub:org/repo@rev, ...
        progress: accepted for the custom of torch.hub; bundled weights need no download.
        timm_kwargs: passed on to timm, such as num_classes=10 or in_chans=1; with these timm itself
            adapts the first layer and the classifier.

    Returns:
        The backbone in evaluation mode: (B, 3, H, W) normalised float -> (B, {dim}).

    Example:
        backbone = torch.hub.load("ORG/nnclr_hub:TAG", "{name}", trust_repo=True)
    """


def entry_points() -> dict[str, EntryPoint]:
    """Every entry point by name."""
    points = {
        name: _entry_point(name, architecture, None, "the network's own", f"{architecture}, the paper's encoder.")
        for name, architecture in ARCHITECTURES.items()
    }
    for name, model in MODELS.items():
        title = f"{model.architecture} trained by {model.recipe}; {model.data}"
        points[name] = _entry_point(name, model.architecture, name, str(model.embed_dim), title)
    return points


def _entry_point(name: str, architecture: str, default: str | None, dim: str, title: str) -> EntryPoint:
    def load(
        *, pretrained: bool = True, weights: str | Path | None = None, progress: bool = True, **timm_kwargs: Any
    ) -> nn.Module:
        del progress
        source = str(weights) if weights is not None else default
        if not pretrained and weights is None:
            own = read_config(MODELS[name].folder).model_args if name in MODELS else {}
            return create_backbone(architecture, model_args={**own, **timm_kwargs}).eval()
        if source is None:
            raise UnknownModel(
                f"There are no published weights for {name} yet: give weights=SOURCE, for example a model folder, "
                f"or pretrained=False; published are {', '.join(MODELS)}."
            )
        return _pretrained(source, name, architecture, timm_kwargs)

    load.__name__ = load.__qualname__ = name
    load.__doc__ = _HELP.format(title=title, default=default or "none is published yet", dim=dim, name=name)
    return load


def _pretrained(source: str, name: str, architecture: str, timm_kwargs: dict[str, Any]) -> nn.Module:
    found = resolve(source)
    if found.folder is None:
        raise InvalidRequest(f"{name} takes a model folder or a published name as weights; {source} is neither.")
    config = found.config
    if config.architecture != timm_name(architecture):
        raise WeightsMismatch(f"{source} is a {config.architecture}, not the {timm_name(architecture)} of {name}.")
    backbone = backbone_from_folder(found.folder, {**config.model_args, **timm_kwargs})
    transform = EvalTransform(Preprocessing.from_pretrained_cfg(config.pretrained_cfg))
    backbone.nnclr_info = {"source": source, "transform": transform, "provenance": dict(config.nnclr)}  # type: ignore[assignment]
    return backbone.eval()
