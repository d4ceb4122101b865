"""AttentionExtractor: attention maps in three steps, so that a server can run each step in a suitable thread.

    extractor = AttentionExtractor(backbone, transform, device, name)
    settings = AttentionSettings(query=Box(40, 60, 200, 220))
    extractor.check(settings)                          # any thread: refuse settings that the network does not support
    prepared = extractor.prepare("cat.jpg", settings)  # any thread: decode and resize
    features = extractor.forward(prepared)             # the thread that owns the device
    (map,) = extractor.maps(settings, features)        # any thread

It computes in float32 with torch, whatever backend computes the vectors. Other threads may be running the network, so
nothing in it may change: `accept_any_size` and `last_attention` work on a shallow copy of the modules on the way to the
change. Every weight stays the network's own tensor.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from timm.layers.attention import Attention
from timm.layers.format import Format
from timm.layers.patch_embed import PatchEmbed
from timm.models.resnet import ResNet
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from nnclr_hub.encoder.attention.geometry import VIEW_SIDE, Axis, Grid, input_size
from nnclr_hub.encoder.attention.maps import AttentionMap, on_one_scale
from nnclr_hub.encoder.attention.query import MAX_SIDE, MAX_TARGETS, AttentionSettings, require_inside
from nnclr_hub.encoder.backends.with_torch import memory_errors
from nnclr_hub.encoder.network_output import feature_map
from nnclr_hub.encoder.preprocessing import ImageLike, Transform, as_source
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.images.channels import for_people

STAGES = ("layer1", "layer2", "layer3", "layer4")
GEOMETRY = ("kernel_size", "stride", "padding", "dilation")
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image ready for the network.

    image: the upright original, RGB.
    pixels: (h, w, C) uint8, the same image uncropped, at the size of the network's input.
    """

    image: Image.Image
    pixels: np.ndarray


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """The network's output for one image.

    prepared: the image.
    grid: where the cells are.
    features: (h, w, D) float32, F of the paper: the last stage after its ReLU, or the patches after the last norm.
    class_token: (D,) float32, [CLS] after the last norm; None without [CLS].
    rows: (heads, N) float32, the softmax row of [CLS] in the last block for each head, with the columns of all
        tokens; None if it cannot be read.
    """

    prepared: PreparedImage
    grid: Grid
    features: np.ndarray
    class_token: np.ndarray | None
    rows: np.ndarray | None


@dataclass(frozen=True)
class NetworkTraits:
    """The traits of a network that supports attention maps.

    transformer: True for a vision transformer, False for a ResNet.
    first: down and across, center of cell 0 in pixels of the input.
    stride: down and across, from one center to the next.
    class_token: whether it has a [CLS] token.
    heads: number of heads of the last block; None if its attention class is unknown.
    attention_class: class name of the last block's attention.
    """

    transformer: bool
    first: tuple[float, float]
    stride: tuple[int, int]
    class_token: bool = False
    heads: int | None = None
    attention_class: str = ""

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


class AttentionExtractor:
    """Make attention maps with an encoder's network; safe to call from many threads, and it changes nothing in it.

    Args:
        backbone: in evaluation mode, on `device`.
        transform: the encoder's; only its interpolation and colors are used.
    """

    def __init__(self, backbone: nn.Module, transform: Transform, device: torch.device, name: str) -> None:
        self._backbone, self._transform, self._device, self._name = backbone, transform, device, name

    @cached_property
    def traits(self) -> NetworkTraits:
        """The traits of the network.

        Raises:
            InvalidRequest: it does not support attention maps.
        """
        return traits_of(self._backbone)

    @property
    def heads(self) -> int | None:
        """Number of heads that `AttentionSettings.head` selects from; None without [CLS], as in a ResNet."""
        try:
            return self.traits.heads if self.traits.class_token else None
        except InvalidRequest:
            return None

    def __call__(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """Run all steps and return the map of the image, or those of the targets.

        Raises:
            ImageError: an image cannot be read; the message has its path, or the number of the target.
            InvalidRequest: see `check` and `maps`.
        """
        self.check(settings, len(targets))
        prepared = []
        for index, one in enumerate((image, *targets)):
            try:
                prepared.append(self.prepare(one, settings, has_query=index == 0, alone=not targets))
            except ImageError as error:
                if index == 0 and not isinstance(one, str | Path):
                    raise
                raise error.for_image(one, index - 1) from error
        first, *others = [self.forward(one) for one in prepared]
        return self.maps(settings, first, others)

    def check(self, settings: AttentionSettings, targets: int = 0) -> None:
        """Check the settings before any image is read.

        Raises:
            InvalidRequest: names the first setting that the network does not support.
        """
        traits, name = self.traits, self._name
        if targets > MAX_TARGETS:
            raise InvalidRequest(f"At most {MAX_TARGETS} target images are allowed, got {targets}.")
        settings.has_prior(targets)
        row = traits.uses_class_token_row(settings, targets)
        for value, what in ((settings.head, "head"), (settings.threshold, "threshold")):
            if value is not None and not row:
                reason = (
                    f"this map shows the similarity to a query; leave out query, target and similarity, or {what}"
                    if traits.transformer
                    else f"{name} is a ResNet; leave {what} out"
                )
                raise InvalidRequest(f"{what}={value} applies only to the [CLS] row of a vision transformer: {reason}.")
        if traits.transformer and settings.query is None and not traits.class_token:
            raise InvalidRequest(f"{name} does not have a [CLS] token; give a point or a box as query.")
        if row and traits.heads is None:
            raise InvalidRequest(
                f"The last block of {name} uses {traits.attention_class}, whose attention rows cannot be read; give a "
                "point or a box as query."
            )
        if row and settings.head is not None and settings.head >= (traits.heads or 0):
            raise InvalidRequest(f"head must be from 0 to {(traits.heads or 0) - 1} for {name}, got {settings.head}.")

    def prepare(
        self,
        image: ImageLike,
        settings: AttentionSettings,
        *,
        has_query: bool = True,
        alone: bool = True,
        most: int = MAX_SIDE,
    ) -> PreparedImage:
        """Decode an image and resize it to the network's input.

        Args:
            image: a path, bytes, a PIL image or (H, W, 3) uint8.
            has_query: whether the query refers to this image; False for targets.
            alone: whether there are no targets.
            most: upper limit of `settings.max_side`.

        Raises:
            ImageError: the image cannot be read.
            InvalidRequest: max_side is too small, or the query is not inside the image.
        """
        decoded = self._transform.read_image(as_source(image))
        if has_query and settings.query is not None:
            require_inside(settings.query, decoded.size)
        down, across = self.traits.stride
        short = VIEW_SIDE if alone and settings.has_prior() and settings.max_side is None else math.inf
        side = most if settings.max_side is None else min(settings.max_side, most)
        size = input_size(decoded.size, (across, down), side, short, whole=self.traits.transformer)
        return PreparedImage(for_people(decoded), self._transform.resized(decoded, size))

    @torch.inference_mode()
    def forward(self, prepared: PreparedImage) -> ImageFeatures:
        """Run one image through the network; the only step that needs the device.

        Raises:
            MemoryError: the image does not fit into the memory of the device.
        """
        class_token = rows = None
        with memory_errors():
            x = self._transform.normalize(torch.from_numpy(prepared.pixels)[None].to(self._device))
            if self.traits.transformer:
                features, class_token, rows = self._transformer(x)
            else:
                features = feature_map(self._backbone, x)
            found = features[0].float().cpu().numpy()
        height, width = prepared.pixels.shape[:2]
        return ImageFeatures(
            prepared,
            self.traits.grid(found.shape[:2], (width, height), prepared.image.size),
            found,
            None if class_token is None else class_token[0].float().cpu().numpy(),
            None if rows is None else rows[0].cpu().numpy(),
        )

    def _transformer(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return patches (1, h, w, D), [CLS] and its rows, from a copy whose settings and hook no other thread sees."""
        network = accept_any_size(cast(VisionTransformer, self._backbone))
        rows: list[Tensor] = []
        if self.traits.class_token and self.traits.heads is not None:
            attention = last_attention(network)
            attention.register_forward_pre_hook(
                lambda module, inputs: rows.append(class_token_rows(attention, inputs[0]))
            )
        # fc_norm is timm's final norm of networks that pool by the mean, and the identity in all others
        tokens = cast(Tensor, network.fc_norm(network.forward_features(x)))
        down, across = self.traits.stride
        patches = tokens[:, network.num_prefix_tokens :].unflatten(1, (x.shape[2] // down, x.shape[3] // across))
        return patches, tokens[:, 0] if self.traits.class_token else None, rows[0] if rows else None

    def maps(
        self, settings: AttentionSettings, image: ImageFeatures, targets: Sequence[ImageFeatures] = ()
    ) -> list[AttentionMap]:
        """Return the map of the image with the query, or those of the targets, on one scale.

        Raises:
            InvalidRequest: the network's output is not finite.
        """
        shown = targets or [image]
        if self.traits.uses_class_token_row(settings, len(targets)):
            kind, values = "class_token", [_class_token_map(settings, one) for one in shown]
        else:  # the query is the mean of the selected cells; without one [CLS], or else the mean of all cells
            cells, kind = image.features, settings.similarity
            if settings.query is not None:
                query = cells[np.ix_(*image.grid.cells(settings.query))].mean((0, 1))
            else:
                query = cells.mean((0, 1)) if image.class_token is None else image.class_token
            values = [_similarity(one.features, query, kind) for one in shown]
        found = []
        for one, value in zip(shown, values, strict=True):
            if not np.isfinite(value).all():
                raise InvalidRequest(
                    f"The output of {self._name} for this image is NaN or infinite; check its weights."
                )
            limits = (float(value.min()), float(value.max()))
            prior = settings.has_prior(len(targets))
            found.append(AttentionMap(value, kind, one.grid, limits, one.prepared.image, prior))
        return on_one_scale(found)


def class_token_rows(attention: Attention, x: Tensor) -> Tensor:
    """Compute the softmax rows of the first token, one per head, from the input of an attention layer.

    This is the paper's "average self-attention over all heads in the final layer", before the average. It needs only
    one query, so it costs at most a twelfth of the layer's own work.

    Args:
        attention: timm's, with fused attention or not.
        x: (B, N, C) tokens, normalized as in the block.

    Returns:
        (B, heads, N) float32; the rows sum to 1.
    """
    width = attention.num_heads * attention.head_dim
    weight, bias = attention.qkv.weight, attention.qkv.bias
    parts = (slice(0, width), slice(width, 2 * width))
    q, k = (
        F.linear(tokens, weight[part], None if bias is None else bias[part]).unflatten(2, (attention.num_heads, -1))
        for tokens, part in zip((x[:, :1], x), parts, strict=True)
    )
    q, k = attention.q_norm(q.transpose(1, 2)), attention.k_norm(k.transpose(1, 2))  # (B, heads, N, C / heads)
    return torch.softmax((q * attention.scale) @ k.transpose(2, 3), dim=-1)[:, :, 0].float()


def _class_token_map(settings: AttentionSettings, features: ImageFeatures) -> np.ndarray:
    assert features.rows is not None
    height, width = features.features.shape[:2]
    row = torch.from_numpy(features.rows.mean(0) if settings.head is None else features.rows[settings.head])
    row = row[-height * width :]  # the patches come last
    if settings.threshold is not None:  # the fewest patches that have this share of the sum
        order = row.double().sort(descending=True, stable=True)
        shares = order.values.cumsum(0)
        kept = torch.zeros_like(row)
        kept[order.indices[: int((shares < settings.threshold * shares[-1]).sum()) + 1]] = 1
        row = row * kept
    return row.view(height, width).numpy()


def _similarity(features: np.ndarray, query: np.ndarray, similarity: str) -> np.ndarray:
    """Return (h, w) float32: <F[i, j], q>, of unit vectors for "cosine"; no softmax, no ReLU."""
    if similarity == "dot":
        return features @ query
    return (F.normalize(torch.from_numpy(features), dim=-1) @ F.normalize(torch.from_numpy(query), dim=0)).numpy()


# ---- the network -----------------------------------------------------------------------------------------------------


def traits_of(backbone: nn.Module) -> NetworkTraits:
    """Read the traits of a network.

    Raises:
        InvalidRequest: it is not a ResNet or vision transformer of timm, or one with an unusual structure.
    """
    if isinstance(backbone, VisionTransformer) and type(backbone.patch_embed) is PatchEmbed:
        down, across = cast(tuple[int, int], backbone.patch_embed.patch_size)
        block = backbone.blocks[-1]
        attention = getattr(block, "attn", block)
        return NetworkTraits(
            transformer=True,
            first=(down / 2, across / 2),
            stride=(down, across),
            class_token=bool(backbone.has_class_token),
            # a subclass may compute something else from the same input
            heads=int(attention.num_heads) if type(attention) is Attention else None,
            attention_class=type(attention).__name__,
        )
    if isinstance(backbone, ResNet):
        # where the shortcut of a block is not the identity, the center is halfway between those of the two branches: a
        # ResNet-D averages over 2 x 2 pixels in one branch, a ResNet-AA in the other
        first, stride = _through(backbone.maxpool, *_through(backbone.conv1, 0.5, 1))
        for block in (block for stage in STAGES for block in cast(nn.Sequential, backbone.get_submodule(stage))):
            direct, _ = _through(cast(nn.Module, block.downsample or nn.Identity()), first, stride)
            for part in (part for name, part in block.named_children() if name != "downsample"):
                first, stride = _through(part, first, stride)
            first = (first + direct) / 2
        if stride == int(cast(Any, backbone.feature_info)[-1]["reduction"]):
            return NetworkTraits(transformer=False, first=(first, first), stride=(stride, stride))
    name = getattr(backbone, "pretrained_cfg", {}).get("architecture") or type(backbone).__name__
    raise InvalidRequest(
        f"{name} does not support attention maps; choose an encoder that is a plain ResNet or vision transformer."
    )


def _through(part: nn.Module, first: float, stride: int) -> tuple[float, int]:
    """Return the center of cell 0 and the stride after some layers, in pixels of the input, from those before them."""
    for layer in part.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            sides = [getattr(layer, name, 1) for name in GEOMETRY]
            kernel, step, padding, dilation = (side if isinstance(side, int) else side[0] for side in sides)
            first += (dilation * (kernel - 1) / 2 - padding) * stride
            stride *= step
    return first, stride


def _shallow_copy(module: Module) -> Module:
    """Return a module with the same children and parameters, but with separate attributes, child slots and hooks."""
    other = copy.copy(module)
    # nn.Module keeps these in dictionaries, which copy.copy shares
    other.__dict__.update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    return other


def accept_any_size(backbone: VisionTransformer) -> VisionTransformer:
    """Return a shallow copy that takes images of any number of whole patches.

    timm resamples the position embeddings on the way. The result is what timm builds under `dynamic_img_size=True`.
    """
    other = _shallow_copy(backbone)
    other.patch_embed = _shallow_copy(cast(nn.Module, other.patch_embed))
    vars(other)["dynamic_img_size"] = True  # these are Final to torch.jit
    vars(other.patch_embed).update(strict_img_size=False, flatten=False, output_fmt=Format.NHWC)
    return other


def last_attention(backbone: VisionTransformer) -> Attention:
    """Return a shallow copy of the last block's attention, put in place; `backbone` must be a shallow copy already."""
    blocks, block = _shallow_copy(backbone.blocks), _shallow_copy(backbone.blocks[-1])
    block.attn = _shallow_copy(cast(nn.Module, block.attn))
    blocks[-1] = block
    backbone.blocks = blocks
    return cast(Attention, block.attn)
