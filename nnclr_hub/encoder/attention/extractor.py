"""AttentionExtractor: attention maps in three steps, so that a server can run each step in a suitable thread.

    extractor = AttentionExtractor(backbone, transform, device, name)
    settings = AttentionSettings(query=Box(40, 60, 200, 220))
    extractor.check(settings)                          # any thread: refuse settings that the network does not support
    prepared = extractor.prepare("cat.jpg", settings)  # any thread: decode and resize
    features = extractor.forward(prepared)             # the thread that owns the device
    (map,) = extractor.maps(settings, features)        # any thread

It computes in float32 with torch, whatever backend computes the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from timm.layers.attention import Attention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from nnclr_hub.encoder.attention.geometry import Grid, input_size
from nnclr_hub.encoder.attention.maps import AttentionMap, on_one_scale
from nnclr_hub.encoder.attention.network import NetworkTraits, accept_any_size, last_attention, traits_of
from nnclr_hub.encoder.attention.query import AttentionSettings, require_inside
from nnclr_hub.encoder.backends.with_torch import memory_errors
from nnclr_hub.encoder.inputs import ImageLike, as_source
from nnclr_hub.encoder.network_output import feature_map
from nnclr_hub.encoder.preprocessing import Transform
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.images.channels import for_people


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


class AttentionExtractor:
    """Make attention maps with an encoder's network; safe to call from many threads, and it changes nothing in it.

    Args:
        backbone: in evaluation mode, on `device`.
        transform: the encoder's; only its interpolation and colors are used.
    """

    def __init__(self, backbone: nn.Module, transform: Transform, device: torch.device, name: str) -> None:
        self._backbone = backbone
        self._transform = transform
        self._device = device
        self._name = name

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
                prepared.append(self.prepare(one, settings, has_query=index == 0))
            except ImageError as error:
                if index == 0 and not isinstance(one, str | Path):
                    raise
                raise error.for_image(one, index - 1) from error
        first, *others = [self.forward(one) for one in prepared]
        return self.maps(settings, first, others)

    def check(self, settings: AttentionSettings, targets: int = 0) -> None:
        """Check the settings before any image is read.

        Raises:
            InvalidRequest: the network does not support a setting.
        """
        self.traits.check(settings, self._name, targets)

    def prepare(self, image: ImageLike, settings: AttentionSettings, *, has_query: bool = True) -> PreparedImage:
        """Decode an image and resize it to the network's input.

        Args:
            image: a path, bytes, a PIL image or (H, W, 3) uint8.
            has_query: whether the query refers to this image; False for targets.

        Raises:
            ImageError: the image cannot be read.
            InvalidRequest: max_side is too small, or the query is not inside the image.
        """
        decoded = self._transform.read_image(as_source(image))
        if has_query and settings.query is not None:
            require_inside(settings.query, decoded.size)
        size = input_size(decoded.size, self.traits.cell, settings.max_side, whole=self.traits.transformer)
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
            attention = cast(Attention, last_attention(network))
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
        else:
            query = _query_vector(settings, image)
            kind, values = settings.similarity, [_similarity(one.features, query, settings.similarity) for one in shown]
        return on_one_scale([self._map(one, found, kind) for one, found in zip(shown, values, strict=True)])

    def _map(self, features: ImageFeatures, values: np.ndarray, kind: str) -> AttentionMap:
        if not np.isfinite(values).all():
            raise InvalidRequest(f"The output of {self._name} for this image is NaN or infinite; check its weights.")
        limits = (float(values.min()), float(values.max()))
        return AttentionMap(values, kind, features.grid, limits, features.prepared.image)


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


def fewest(row: Tensor, mass: float) -> Tensor:
    """Select the fewest patches whose share of the row's sum is `mass` or more.

    Args:
        row: (n,) not negative, not all zero.
        mass: in (0, 1].

    Returns:
        (n,) bool.
    """
    order = row.double().sort(descending=True, stable=True)
    shares = order.values.cumsum(0)
    count = int((shares < mass * shares[-1]).sum()) + 1
    kept = torch.zeros(len(row), dtype=torch.bool)
    kept[order.indices[:count]] = True
    return kept


def _class_token_map(settings: AttentionSettings, features: ImageFeatures) -> np.ndarray:
    assert features.rows is not None
    row = torch.from_numpy(features.rows.mean(0) if settings.head is None else features.rows[settings.head])
    row = row[-features.features.shape[0] * features.features.shape[1] :]  # the patches come last
    if settings.threshold is not None:
        row = row * fewest(row, settings.threshold)
    return row.view(features.features.shape[:2]).numpy()


def _query_vector(settings: AttentionSettings, features: ImageFeatures) -> np.ndarray:
    """Return (D,) float32: the mean of the selected cells; without a query [CLS], or else the mean of all cells."""
    if settings.query is not None:
        rows, columns = features.grid.cells(settings.query)
        return features.features[np.ix_(rows, columns)].mean((0, 1))
    return features.features.mean((0, 1)) if features.class_token is None else features.class_token


def _similarity(features: np.ndarray, query: np.ndarray, similarity: str) -> np.ndarray:
    """Return (h, w) float32: <F[i, j], q>, of unit vectors for "cosine"; no softmax, no ReLU."""
    if similarity == "dot":
        return features @ query
    return (F.normalize(torch.from_numpy(features), dim=-1) @ F.normalize(torch.from_numpy(query), dim=0)).numpy()
