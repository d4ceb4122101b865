"""What attention has to know of a network: where its cells see, and what its last block attends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from timm.layers.attention import Attention
from timm.layers.patch_embed import PatchEmbed
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from nnclr_hub.encoder.attention.geometry import Axis, Grid
from nnclr_hub.errors import InvalidRequest

STAGES = ("layer1", "layer2", "layer3", "layer4")


@dataclass(frozen=True)
class Anatomy:
    """A network that maps can be made of.

    transformer: whether it is a vision transformer; else it is a ResNet.
    first: down and across, center of cell 0 in pixels of the input.
    stride: likewise, from one center to the next.
    class_token: whether there is a [CLS].
    heads: of the last block's attention; None: not one that we know.
    attends_by: class of the last block's attention.
    """

    transformer: bool
    first: tuple[float, float]
    stride: tuple[int, int]
    class_token: bool = False
    heads: int | None = None
    attends_by: str = ""

    @property
    def cell(self) -> tuple[int, int]:
        """Pixels of the input across and down from one center to the next."""
        return self.stride[1], self.stride[0]

    def grid(self, cells: tuple[int, int], input_size: tuple[int, int], original_size: tuple[int, int]) -> Grid:
        """Where the cells of one image lie.

        Args:
            cells: h and w of its map.
            input_size: width and height that the network was given.
            original_size: width and height of the upright original.
        """
        down, across = (
            Axis(cells[i], self.first[i], self.stride[i], input_size[1 - i], original_size[1 - i]) for i in (0, 1)
        )
        return Grid(down, across)


def anatomy_of(backbone: nn.Module) -> Anatomy:
    """Reads a network.

    Raises:
        InvalidRequest: it is neither a ResNet nor a vision transformer of timm's, or one of an unusual build.
    """
    if isinstance(backbone, VisionTransformer) and type(backbone.patch_embed) is PatchEmbed:
        down, across = cast(tuple[int, int], backbone.patch_embed.patch_size)
        block = backbone.blocks[-1]
        attention = getattr(block, "attn", block)
        # a subclass may compute something else of the same input
        known = type(attention) is Attention
        return Anatomy(
            transformer=True,
            first=(down / 2, across / 2),
            stride=(down, across),
            class_token=bool(backbone.has_class_token),
            heads=int(attention.num_heads) if known else None,
            attends_by=type(attention).__name__,
        )
    if isinstance(backbone, ResNet):
        first, stride = _of_convolutions(backbone)
        if stride == int(cast(Any, backbone.feature_info)[-1]["reduction"]):
            return Anatomy(transformer=False, first=(first, first), stride=(stride, stride))
    name = getattr(backbone, "pretrained_cfg", {}).get("architecture") or type(backbone).__name__
    raise InvalidRequest(
        f"{name} is not a ResNet or a vision transformer of the usual build, so there is no map of where its features "
        "look: take another encoder."
    )


def _of_convolutions(backbone: ResNet) -> tuple[float, int]:
    """Center of cell 0 and the stride, in pixels of the input.

    Where a block's shortcut is no identity, the center is half way between its two branches': a ResNet-D averages over
    2 x 2 pixels in the one, a ResNet-AA in the other.
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
    """Center of cell 0 and the stride behind some layers, from those before them."""
    for layer in part.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            kernel, step, padding, dilation = (_side(getattr(layer, name, 1)) for name in _GEOMETRY)
            first += (dilation * (kernel - 1) / 2 - padding) * stride
            stride *= step
    return first, stride


_GEOMETRY = ("kernel_size", "stride", "padding", "dilation")


def _side(value: int | tuple[int, int]) -> int:
    return value if isinstance(value, int) else value[0]
