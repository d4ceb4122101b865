"""Find the timm architecture of a backbone by the names and shapes of its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nnclr_hub.encoder.backbones import create_backbone, default_side, sized
from nnclr_hub.errors import WeightsMismatch

RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"),
    *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d"),
)
VITS = (
    *("vit_tiny_patch16_224", "vit_small_patch8_224", "vit_small_patch16_224", "vit_small_patch32_224"),
    *("vit_base_patch8_224", "vit_base_patch16_224", "vit_base_patch32_224"),
    *("vit_large_patch16_224", "vit_large_patch32_224", "vit_huge_patch14_224"),
)
SMALL = 384  # width of a ViT-S: of 6 heads as DINO and timm build it, of 12 as MoCo v3 does
_LAYER = "encoder.layers.encoder_layer_"
_IN_A_LAYER = {
    "ln_1": "norm1",
    "ln_2": "norm2",
    "self_attention.out_proj": "attn.proj",
    "mlp.0": "mlp.fc1",
    "mlp.3": "mlp.fc2",
    "mlp.linear_1": "mlp.fc1",  # before torchvision 0.13
    "mlp.linear_2": "mlp.fc2",
}
_AROUND = {
    "class_token": "cls_token",
    "encoder.pos_embedding": "pos_embed",
    "encoder.ln": "norm",
    "conv_proj": "patch_embed.proj",
}


def timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a torchvision vision transformer to timm's names; a ResNet's names are equal in both."""
    if "conv_proj.weight" not in state:
        return dict(state)
    return {_timm_name(key): value for key, value in state.items()}


def find_architecture(
    state: Mapping[str, Tensor], origin: str, architecture: str | None, model_args: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return timm's name and the arguments of the architecture whose names and shapes equal those of `state`.

    Args:
        state: under timm's names.
        architecture: the only one to try; None for all stock ones.
        model_args: arguments of it.

    Raises:
        WeightsMismatch: no architecture fits, or the weights alone do not determine it.
    """
    _require_known_stem(state, origin, architecture)
    _require_known_heads(state, origin, model_args)
    candidates = [architecture] if architecture else VITS if "patch_embed.proj.weight" in state else RESNETS
    differences = {}
    for name in candidates:
        arguments = {**_input_size(name, state, origin), **model_args}
        differences[name] = _difference(_shapes(name, arguments), state)
        if not differences[name]:
            return name, arguments
    nearest = min(differences, key=lambda name: len(differences[name]))
    raise WeightsMismatch(
        f"{origin} does not match {', '.join(candidates)}; the nearest, {nearest}, differs in "
        f"{', '.join(differences[nearest][:3])}. Name its timm architecture with --architecture, and its "
        "arguments with --arg NAME=VALUE."
    )


def with_counters(state: Mapping[str, Tensor], name: str, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """Add the batch counters that very old files lack and evaluation never reads."""
    counters = {key for key in _shapes(name, arguments) if key.endswith(".num_batches_tracked")}
    return {**{key: torch.zeros((), dtype=torch.int64) for key in counters}, **state}


def _timm_name(key: str) -> str:
    for theirs, ours in _AROUND.items():
        if key == theirs or key.startswith(f"{theirs}."):
            return ours + key.removeprefix(theirs)
    if not key.startswith(_LAYER):
        return key
    number, _, inner = key.removeprefix(_LAYER).partition(".")
    for theirs, ours in _IN_A_LAYER.items():
        if inner.startswith(f"{theirs}."):
            return f"blocks.{number}.{ours}{inner.removeprefix(theirs)}"
    return f"blocks.{number}.{inner.replace('self_attention.in_proj_', 'attn.qkv.')}"


def _shapes(name: str, arguments: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        backbone = create_backbone(name, model_args=arguments)
    return {key: tuple(value.shape) for key, value in backbone.state_dict().items()}


def _difference(wanted: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]) -> list[str]:
    """Return the names that differ or have another shape, except for missing batch counters."""
    found = {key: tuple(value.shape) for key, value in state.items()}
    missing = [key for key in wanted.keys() - found.keys() if not key.endswith(".num_batches_tracked")]
    other = [key for key in wanted.keys() & found.keys() if wanted[key] != found[key]]
    return sorted([*missing, *(found.keys() - wanted.keys()), *other])


def _input_size(name: str, state: Mapping[str, Tensor], origin: str) -> dict[str, Any]:
    """Return the image size of a transformer's position embeddings, unless it is the default."""
    positions, patches = state.get("pos_embed"), state.get("patch_embed.proj.weight")
    if positions is None or patches is None or positions.ndim != 3 or patches.ndim != 4 or not sized(name):
        return {}
    grid = math.isqrt(max(positions.shape[1], 1) - 1)
    if grid * grid != positions.shape[1] - 1:
        raise WeightsMismatch(
            f"{origin} has {positions.shape[1]} positions, which is not a square number plus one for [CLS], so its "
            "architecture is unknown; name it with --architecture."
        )
    side = grid * patches.shape[-1]
    return {} if side == default_side(name) else {"img_size": side}


def _require_known_stem(state: Mapping[str, Tensor], origin: str, architecture: str | None) -> None:
    stem = state.get("conv1.weight")
    if architecture is None and stem is not None and stem.ndim == 4 and stem.shape[-1] == 3:
        raise WeightsMismatch(
            f"The first convolution of {origin} is 3 x 3, and the file does not record its padding (2 in solo-learn, 1 "
            "here). If it is 1, use --architecture nnclr_resnet18_cifar or nnclr_resnet50_cifar."
        )


def arguments_of(layout: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return arguments that the code of a project defines but its weights do not show.

    MoCo v3's ViT-S has 12 heads, timm's has 6.
    """
    token = state.get("cls_token")
    small = token is not None and token.shape[-1] == SMALL
    return {"num_heads": 12} if small and layout == "MoCo v3" else {}


def _require_known_heads(state: Mapping[str, Tensor], origin: str, model_args: Mapping[str, Any]) -> None:
    """Refuse a ViT-S that may have 12 heads; the shapes of its weights are equal for any number of heads."""
    positions = state.get("pos_embed")
    if positions is None or positions.ndim != 3 or positions.shape[-1] != SMALL or "num_heads" in model_args:
        return
    if not positions[:, 0].any():  # fixed sines and cosines, as in MoCo v3, with none for [CLS]
        raise WeightsMismatch(
            f"{origin} is a ViT-S with MoCo v3's fixed positions, and its weights do not show the number of heads. Use "
            "--arg num_heads=12 (MoCo v3) or num_heads=6 (timm)."
        )
