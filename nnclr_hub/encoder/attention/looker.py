"""Looker: attention in three steps, so that a server can run each where it belongs.

    looker = Looker(backbone, transform, device, name)
    settings = AttentionSettings(query=Box(40, 60, 200, 220))
    looker.check(settings)                          # any thread: what the network has no answer to
    prepared = looker.prepare("cat.jpg", settings)  # any thread: decoding and resizing
    seen = looker.forward(prepared)                 # the thread that owns the device
    (map,) = looker.maps(settings, seen)            # any thread

It computes in float32 with torch, whatever backend the embeddings come from.
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

from nnclr_hub.encoder.attention.anatomy import Anatomy, anatomy_of
from nnclr_hub.encoder.attention.class_token import class_token_rows, fewest
from nnclr_hub.encoder.attention.geometry import Grid
from nnclr_hub.encoder.attention.maps import AttentionMap, on_one_scale
from nnclr_hub.encoder.attention.queries import require_inside
from nnclr_hub.encoder.attention.settings import AttentionSettings
from nnclr_hub.encoder.attention.sizes import input_size
from nnclr_hub.encoder.attention.twin import any_size, last_attention
from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.encoder.given import ImageLike, readable
from nnclr_hub.encoder.outputs import feature_map
from nnclr_hub.encoder.preprocess import EvalTransform
from nnclr_hub.errors import ImageError, InvalidRequest


@dataclass(frozen=True, eq=False)
class Prepared:
    """An image ready for the network.

    image: the upright original, RGB.
    pixels: (h, w, 3) uint8, the same uncropped at the size of the network's input.
    """

    picture: Image.Image
    pixels: np.ndarray


@dataclass(frozen=True, eq=False)
class Seen:
    """What the network makes of an image.

    prepared: the image.
    grid: where the cells lie.
    features: (h, w, D) float32, F of the paper: the last stage after its ReLU, or the patches after the last norm.
    class_token: (D,) float32, [CLS] after the last norm; None where there is none.
    rows: (heads, N) float32, the softmax row of [CLS] in the last block for each head, with the columns of all
        tokens; None where it cannot be read.
    """

    prepared: Prepared
    grid: Grid
    features: np.ndarray
    class_token: np.ndarray | None
    rows: np.ndarray | None


class Looker:
    """An encoder's network, as attention uses it: from any number of threads, and without changing anything of it.

    Args:
        backbone: in evaluation mode, on `device`.
        transform: what the encoder does to an image; of it, the interpolation and the colors.
        device: where the network is.
        name: of the encoder, for sentences.
    """

    def __init__(self, backbone: nn.Module, transform: EvalTransform, device: torch.device, name: str) -> None:
        self._backbone = backbone
        self._transform = transform
        self._device = device
        self._name = name

    @cached_property
    def anatomy(self) -> Anatomy:
        """What there is to know of the network.

        Raises:
            InvalidRequest: maps cannot be made of it.
        """
        return anatomy_of(self._backbone)

    def attention(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """All three steps: the map of the image, or those of the targets.

        Raises:
            ImageError: an image that cannot be read, or has no map at any size, by its path or a target's number.
            InvalidRequest: see `check` and `maps`.
        """
        self.check(settings, len(targets))
        pictures = []
        for index, picture in enumerate((image, *targets)):
            try:
                pictures.append(self.prepare(picture, settings, asked=index == 0))
            except ImageError as error:
                if index == 0 and not isinstance(picture, str | Path):
                    raise
                raise error.for_image(picture, index - 1) from error
        first, *others = [self.forward(prepared) for prepared in pictures]
        return self.maps(settings, first, others)

    def check(self, settings: AttentionSettings, targets: int = 0) -> None:
        """Refuses what this network has no answer to, before any image is read.

        Args:
            settings: the question.
            targets: number of images that the query is looked for in.

        Raises:
            InvalidRequest: one sentence.
        """
        settings.check(self.anatomy, self._name, targets)

    def prepare(self, image: ImageLike, settings: AttentionSettings, *, asked: bool = True) -> Prepared:
        """Decodes an image and brings it to the size of the network's input.

        Args:
            image: a path, bytes, a PIL image or (H, W, 3) uint8.
            settings: the question.
            asked: whether it is the image that the query is in.

        Raises:
            ImageError: it cannot be read.
            InvalidRequest: max_side is too little, or the query is not inside the image.
        """
        picture = decode_image(readable(image))
        if asked and settings.query is not None:
            require_inside(settings.query, picture.size)
        size = input_size(picture.size, self.anatomy.cell, settings.max_side, whole=self.anatomy.transformer)
        return Prepared(picture, self._transform.resized(picture, size))

    @torch.inference_mode()
    def forward(self, prepared: Prepared) -> Seen:
        """One forward pass of one image; the only step that needs the device."""
        x = self._transform.normalise(torch.from_numpy(prepared.pixels)[None].to(self._device))
        anatomy = self.anatomy
        class_token = rows = None
        if anatomy.transformer:
            features, class_token, rows = self._transformer(x)
        else:
            features = feature_map(self._backbone, x)
        found = features[0].float().cpu().numpy()
        height, width = prepared.pixels.shape[:2]
        return Seen(
            prepared,
            anatomy.grid(found.shape[:2], (width, height), prepared.picture.size),
            found,
            None if class_token is None else class_token[0].float().cpu().numpy(),
            None if rows is None else rows[0].cpu().numpy(),
        )

    def _transformer(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Of a twin, whose settings and hook no other thread sees: patches (1, h, w, D), [CLS] and its rows."""
        network = any_size(cast(VisionTransformer, self._backbone))
        rows: list[Tensor] = []
        if self.anatomy.class_token and self.anatomy.heads is not None:
            attention = cast(Attention, last_attention(network))
            attention.register_forward_pre_hook(
                lambda module, inputs: rows.append(class_token_rows(attention, inputs[0]))
            )
        # one of the two is timm's final norm, the other nothing: networks that pool by the mean norm behind the pool
        tokens = cast(Tensor, network.fc_norm(network.forward_features(x)))
        down, across = self.anatomy.stride
        patches = tokens[:, network.num_prefix_tokens :].unflatten(1, (x.shape[2] // down, x.shape[3] // across))
        return patches, tokens[:, 0] if self.anatomy.class_token else None, rows[0] if rows else None

    def maps(self, settings: AttentionSettings, image: Seen, targets: Sequence[Seen] = ()) -> list[AttentionMap]:
        """The map of the image that was asked about, or those of the targets, on one scale.

        Raises:
            InvalidRequest: the network's numbers are not finite.
        """
        pictures = targets or [image]
        if settings.of_class_token(self.anatomy, len(targets)):
            kind, values = "class_token", [self._row(settings, seen) for seen in pictures]
        else:
            query = _query_vector(settings, image)
            kind, values = (
                settings.similarity,
                [_similarity(seen.features, query, settings.similarity) for seen in pictures],
            )
        return on_one_scale([self._map(*found, kind) for found in zip(pictures, values, strict=True)])

    def _row(self, settings: AttentionSettings, seen: Seen) -> np.ndarray:
        assert seen.rows is not None
        row = torch.from_numpy(seen.rows.mean(0) if settings.head is None else seen.rows[settings.head])
        row = row[-seen.features.shape[0] * seen.features.shape[1] :]  # the patches come last
        if settings.threshold is not None:
            row = row * fewest(row, settings.threshold)
        return row.view(seen.features.shape[:2]).numpy()

    def _map(self, seen: Seen, values: np.ndarray, kind: str) -> AttentionMap:
        if not np.isfinite(values).all():
            raise InvalidRequest(f"{self._name} gives numbers that are not finite for this image: check its weights.")
        return AttentionMap(values, kind, seen.grid, (float(values.min()), float(values.max())), seen.prepared.picture)


def _query_vector(settings: AttentionSettings, seen: Seen) -> np.ndarray:
    """(D,) float32: the mean of the cells that are meant; without a query [CLS], or the mean of all."""
    if settings.query is not None:
        rows, columns = seen.grid.cells(settings.query)
        return seen.features[np.ix_(rows, columns)].mean((0, 1))
    return seen.features.mean((0, 1)) if seen.class_token is None else seen.class_token


def _similarity(features: np.ndarray, query: np.ndarray, similarity: str) -> np.ndarray:
    """(h, w) float32: <F[i, j], q>, both brought to length 1 for "cosine"; no softmax, no ReLU."""
    if similarity == "dot":
        return features @ query
    return (F.normalize(torch.from_numpy(features), dim=-1) @ F.normalize(torch.from_numpy(query), dim=0)).numpy()
