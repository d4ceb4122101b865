"""What attention maps need from a network: where its cells are, and access to the attention of its last block.

Other threads may be running the network, so nothing in it may change. `accept_any_size` and `last_attention` work on a
shallow copy of the modules on the way to the change. Every weight stays the network's own tensor.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from timm.layers.attention import Attention
from timm.layers.format import Format
from timm.layers.patch_embed import PatchEmbed
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from nnclr_hub.encoder.attention.geometry import Axis, Grid
from nnclr_hub.encoder.attention.query import MAX_TARGETS, AttentionSettings
from nnclr_hub.errors import InvalidRequest

STAGES = ("layer1", "layer2", "layer3", "layer4")
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class NetworkTraits:
    """The traits of a network that supports attention maps.

    transformer: True for a vision transformer, False for a ResNet.
    first: down and across, center of cell 0 in pixels of the input.
    stride: down and across, from one center to the next.
    class_token: whether it has a [CLS] token.
    heads: of the last block's attention; None if its attention class is unknown.
    attention_class: class name of the last block's attention.
    """

    transformer: bool
    first: tuple[float, float]
    stride: tuple[int, int]
    class_token: bool = False
    heads: int | None = None
    attention_class: str = ""

    @property
    def cell(self) -> tuple[int, int]:
        """Pixels of the input across and down from one center to the next."""
        return self.stride[1], self.stride[0]

    def grid(self, cells: tuple[int, int], input_size: tuple[int, int], original_size: tuple[int, int]) -> Grid:
        """Return where the cells of one image are.

        Args:
            cells: h and w of its map.
            input_size: width and height of the network's input.
            original_size: width and height of the upright original.
        """
        down, across = (
            Axis(cells[i], self.first[i], self.stride[i], input_size[1 - i], original_size[1 - i]) for i in (0, 1)
        )
        return Grid(down, across)

    def uses_class_token_row(self, settings: AttentionSettings, targets: int = 0) -> bool:
        """Return whether the map is the softmax row of [CLS]: of a transformer, for one image, without a query."""
        return self.transformer and settings.query is None and not targets and settings.similarity == "dot"

    def check(self, settings: AttentionSettings, name: str, targets: int = 0) -> None:
        """Check that the network can make a map with these settings.

        Raises:
            InvalidRequest: names the first setting that does not fit.
        """
        if targets > MAX_TARGETS:
            raise InvalidRequest(f"At most {MAX_TARGETS} target images are allowed, got {targets}.")
        row = self.uses_class_token_row(settings, targets)
        for value, what in ((settings.head, "head"), (settings.threshold, "threshold")):
            if value is not None and not row:
                reason = (
                    f"this map shows the similarity to a query; leave out query, target and similarity, or {what}"
                    if self.transformer
                    else f"{name} is a ResNet; leave {what} out"
                )
                raise InvalidRequest(f"{what}={value} applies only to the [CLS] row of a vision transformer: {reason}.")
        if self.transformer and settings.query is None and not self.class_token:
            raise InvalidRequest(f"{name} does not have a [CLS] token; give a point or a box as query.")
        if row and self.heads is None:
            raise InvalidRequest(
                f"The last block of {name} uses {self.attention_class}, whose attention rows cannot be read; give a "
                "point or a box as query."
            )
        if row and settings.head is not None and settings.head >= (self.heads or 0):
            raise InvalidRequest(f"head must be from 0 to {(self.heads or 0) - 1} for {name}, got {settings.head}.")


def traits_of(backbone: nn.Module) -> NetworkTraits:
    """Read the traits of a network.

    Raises:
        InvalidRequest: it is not a ResNet or vision transformer of timm, or one with an unusual structure.
    """
    if isinstance(backbone, VisionTransformer) and type(backbone.patch_embed) is PatchEmbed:
        down, across = cast(tuple[int, int], backbone.patch_embed.patch_size)
        block = backbone.blocks[-1]
        attention = getattr(block, "attn", block)
        # a subclass may compute something else from the same input
        known = type(attention) is Attention
        return NetworkTraits(
            transformer=True,
            first=(down / 2, across / 2),
            stride=(down, across),
            class_token=bool(backbone.has_class_token),
            heads=int(attention.num_heads) if known else None,
            attention_class=type(attention).__name__,
        )
    if isinstance(backbone, ResNet):
        first, stride = _of_resnet(backbone)
        if stride == int(cast(Any, backbone.feature_info)[-1]["reduction"]):
            return NetworkTraits(transformer=False, first=(first, first), stride=(stride, stride))
    name = getattr(backbone, "pretrained_cfg", {}).get("architecture") or type(backbone).__name__
    raise InvalidRequest(
        f"{name} does not support attention maps; choose an encoder that is a plain ResNet or vision transformer."
    )


def _of_resnet(backbone: ResNet) -> tuple[float, int]:
    """Return the center of cell 0 and the stride, in pixels of the input.

    Where the shortcut of a block is not the identity, the center is halfway between those of the two branches. A
    ResNet-D averages over 2 x 2 pixels in one branch, a ResNet-AA in the other.
    """
    first, stride = _through(backbone.maxpool, *_through(backbone.conv1, 0.5, 1))
    for stage in STAGES:
        for block in cast(nn.Sequential, backbone.get_submodule(stage)):
            direct, _ = _through(cast(nn.Module, block.downsample or nn.Identity()), first, stride)
            for name, part in block.named_children():
                if name != "downsample":
                    first, stride = _through(part, first, stride)
            first = (first + direct) / 2
    return first, stride


def _through(part: nn.Module, first: float, stride: int) -> tuple[float, int]:
    """Return the center of cell 0 and the stride after some layers, from those before them."""
    for layer in part.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            kernel, step, padding, dilation = (_side(getattr(layer, name, 1)) for name in _GEOMETRY)
            first += (dilation * (kernel - 1) / 2 - padding) * stride
            stride *= step
    return first, stride


_GEOMETRY = ("kernel_size", "stride", "padding", "dilation")


def _side(value: int | tuple[int, int]) -> int:
    return value if isinstance(value, int) else value[0]


def shallow_copy(module: Module) -> Module:
    """Return a module with the same children and parameters, but with separate attributes, child slots and hooks."""
    other = copy.copy(module)
    # nn.Module keeps these in dictionaries, which copy.copy shares
    other.__dict__.update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    return other


def accept_any_size(backbone: VisionTransformer) -> VisionTransformer:
    """Return a shallow copy that takes images of any number of whole patches.

    timm resamples the position embeddings on the way. The result is what timm builds under `dynamic_img_size=True`.
    """
    other = shallow_copy(backbone)
    other.patch_embed = shallow_copy(cast(nn.Module, other.patch_embed))
    vars(other)["dynamic_img_size"] = True  # these are Final to torch.jit
    vars(other.patch_embed).update(strict_img_size=False, flatten=False, output_fmt=Format.NHWC)
    return other


def last_attention(backbone: VisionTransformer) -> nn.Module:
    """Return a shallow copy of the last block's attention, put in place; `backbone` must be a shallow copy already."""
    blocks, block = shallow_copy(backbone.blocks), shallow_copy(backbone.blocks[-1])
    block.attn = shallow_copy(cast(nn.Module, block.attn))
    blocks[-1] = block
    backbone.blocks = blocks
    return block.attn
