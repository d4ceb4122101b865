"""Find the timm architecture of a backbone by the names and shapes of its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nnclr_hub.encoder.backbones import create_backbone, default_side, sized, uninitialized
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
# of facebookresearch/dinov2, by timm's names, which have LayerScale
DINOV2 = tuple(f"vit_{size}_patch14_dinov2" for size in ("small", "base", "large", "giant"))
DINOV2_REGISTERS = tuple(f"vit_{size}_patch14_reg4_dinov2" for size in ("small", "base", "large", "giant"))
SMALL = 384  # width of a ViT-S: of 6 heads as DINO and timm build it, of 12 as MoCo v3 does
STAGES = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
# a tensor of the network -> (pattern, timm's name) for each of its names that timm has otherwise
NAMES = {
    # pytorch/vision, torchvision/models/vision_transformer.py; a ResNet has timm's names
    "conv_proj.weight": (
        (r"^class_token$", "cls_token"),
        (r"^encoder\.pos_embedding$", "pos_embed"),
        (r"^encoder\.ln\.", "norm."),
        (r"^conv_proj\.", "patch_embed.proj."),
        (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
        (r"\.ln_([12])\.", r".norm\1."),
        (r"\.self_attention\.in_proj_", ".attn.qkv."),
        (r"\.self_attention\.out_proj\.", ".attn.proj."),
        (r"\.mlp\.(0|linear_1)\.", ".mlp.fc1."),  # linear_1 and linear_2 before torchvision 0.13
        (r"\.mlp\.(3|linear_2)\.", ".mlp.fc2."),
    ),
    # facebookresearch/dinov2, dinov2/models/vision_transformer.py and dinov2/layers/swiglu_ffn.py
    "patch_embed.proj.weight": (
        (r"^register_tokens$", "reg_token"),
        (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # in chunks for FSDP; the second number counts through
        (r"\.mlp\.w12\.", ".mlp.fc1."),
        (r"\.mlp\.w3\.", ".mlp.fc2."),
    ),
    # nn.Sequential of the children of a ResNet, as in lightly-ai/lightly, examples/pytorch
    "0.weight": tuple((rf"^{number}\.", f"{stage}.") for number, stage in STAGES.items()),
}


def timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of a backbone of torchvision, DINOv2 or nn.Sequential to timm's names."""
    token, positions = state.get("cls_token"), state.get("pos_embed")
    if "register_tokens" in state and token is not None and positions is not None and positions.ndim == 3:
        first = positions[:, :1]  # with registers, timm adds the position of [CLS] to its token
        if token.shape == first.shape:
            state = {**state, "cls_token": token + first, "pos_embed": positions[:, 1:]}
    renamed = {}
    for key, value in state.items():
        name = key
        for pattern, replacement in (rule for mark, rules in NAMES.items() if mark in state for rule in rules):
            name = re.sub(pattern, replacement, name)
        renamed[name] = value
    return renamed if len(renamed) == len(state) else dict(state)  # two tensors of one name: refused for their names


def with_counters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add the batch counters that very old files lack and evaluation never reads."""
    norms = [key.removesuffix("running_mean") for key in state if key.endswith(".running_mean")]
    return {**{f"{norm}num_batches_tracked": torch.zeros((), dtype=torch.int64) for norm in norms}, **state}


def arguments_of(layout: str, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return arguments that the code of a project defines but its weights do not show."""
    token = state.get("cls_token")
    small = token is not None and token.shape[-1] == SMALL
    return {"num_heads": 12} if small and layout == "MoCo v3" else {}


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
    stem, positions = state.get("conv1.weight"), state.get("pos_embed")
    if architecture is None and stem is not None and stem.ndim == 4 and stem.shape[-1] == 3:
        raise WeightsMismatch(
            f"The first convolution of {origin} is 3 x 3, and the file does not record its padding (2 in solo-learn, 1 "
            "here). If it is 1, use --architecture nnclr_resnet18_cifar or nnclr_resnet50_cifar."
        )
    fixed = positions is not None and positions.ndim == 3 and positions.shape[1] > 0 and not positions[:, 0].any()
    # the shapes of a ViT-S are equal for any number of heads; MoCo v3 has fixed positions, zeros for [CLS]
    if fixed and positions is not None and positions.shape[-1] == SMALL and "num_heads" not in model_args:
        raise WeightsMismatch(
            f"{origin} is a ViT-S with MoCo v3's fixed positions, and its weights do not show the number of heads. Use "
            "--arg num_heads=12 (MoCo v3) or num_heads=6 (timm)."
        )
    if architecture:
        candidates: tuple[str, ...] = (architecture,)
    elif "patch_embed.proj.weight" not in state:
        candidates = RESNETS
    elif "reg_token" in state:
        candidates = DINOV2_REGISTERS
    else:
        candidates = DINOV2 if "blocks.0.ls1.gamma" in state else VITS
    differences = {}
    for name in candidates:
        arguments = {**_input_size(name, state, origin), **model_args}
        wanted = _stock_shapes(name) if not arguments else _shapes(name, arguments)
        differences[name] = _difference(wanted, state)
        if not differences[name]:
            return name, arguments
    nearest = min(differences, key=lambda name: len(differences[name]))
    raise WeightsMismatch(
        f"{origin} does not match {', '.join(candidates)}; the nearest, {nearest}, differs in "
        f"{', '.join(differences[nearest][:3])}. Name its timm architecture with --architecture, and its "
        "arguments with --arg NAME=VALUE."
    )


@cache  # building a network takes up to half a second, and a conversion compares with each candidate
def _stock_shapes(name: str) -> dict[str, tuple[int, ...]]:
    return _shapes(name, {})


def _shapes(name: str, arguments: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"), uninitialized():
        backbone = create_backbone(name, model_args=arguments)
    return {key: tuple(value.shape) for key, value in backbone.state_dict().items()}


def _difference(wanted: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]) -> list[str]:
    """Return the names that differ or have another shape, except for missing batch counters."""
    missing = [key for key in wanted.keys() - state.keys() if not key.endswith(".num_batches_tracked")]
    other = [key for key in wanted.keys() & state.keys() if wanted[key] != tuple(state[key].shape)]
    return sorted([*missing, *(state.keys() - wanted.keys()), *other])


def _input_size(name: str, state: Mapping[str, Tensor], origin: str) -> dict[str, Any]:
    """Return the image size of a transformer's position embeddings, unless it is the default."""
    positions, patches = state.get("pos_embed"), state.get("patch_embed.proj.weight")
    if positions is None or patches is None or positions.ndim != 3 or patches.ndim != 4 or not sized(name):
        return {}
    patch_positions = positions.shape[1] - ("reg_token" not in state)  # with registers, [CLS] has none
    grid = math.isqrt(max(patch_positions, 0))
    if grid * grid != patch_positions:
        raise WeightsMismatch(
            f"{origin} has {positions.shape[1]} positions, which is not a square number plus one for [CLS], so its "
            "architecture is unknown; name it with --architecture."
        )
    side = grid * patches.shape[-1]
    return {} if side == default_side(name) else {"img_size": side}
