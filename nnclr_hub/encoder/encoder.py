"""Encoder: images in, unit vectors out.

encoder = load_encoder("nnclr_resnet18_small_cpu_starter")
encoder.embed(["a.jpg", "b.png"])               # (2, D) float32, unit rows
encoder.embed_each(["a.jpg", "broken.jpg"])     # [(D,) float32, ImageError]
encoder.embed_in_order(paths)                   # the same, one after the other, for any number
encoder.tokens(["a.jpg"])                       # (1, h, w, D)
encoder.attention("a.jpg", Point(120, 80))      # AttentionMap: where it looks the same
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnclr_hub.encoder.attending import Attending
from nnclr_hub.encoder.backbones import create_backbone, input_side, is_convolutional, load_state
from nnclr_hub.encoder.backends import parse_backend
from nnclr_hub.encoder.backends.network import Network
from nnclr_hub.encoder.backends.opening import open_backend
from nnclr_hub.encoder.backends.with_torch import forward
from nnclr_hub.encoder.device import find_device
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.fingerprint import fingerprint_of
from nnclr_hub.encoder.given import Stored, as_list, readable
from nnclr_hub.encoder.outputs import feature_map, vector_length
from nnclr_hub.encoder.preprocess import EvalTransform, Preprocessing
from nnclr_hub.encoder.tensors import as_tensor, crops_of, transformed_batches
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.hub.layout import ModelConfig, read_weights
from nnclr_hub.hub.sources import resolve
from nnclr_hub.read_ahead import batches, read_ahead

BATCH = 64


class Encoder(Attending):
    """A backbone with its preprocessing; safe to call from many threads.

    Args:
        backbone: (B, 3, S, S) float -> (B, D); put in evaluation mode, its weights in float32, whatever they were.
        preprocessing: what it wants done to an image.
        name: the source it came from.
        device: None: the GPU if there is one.
        precision: "fp32" or "bf16"; None: fp32, or what `backend` says.
        config: the model folder's config.json, if it came from one.
        batch_size: images a forward pass.
        backend: what runs images through the network, one of `nnclr_hub.encoder.backends`; "auto" for the
            fastest here. Tensors of floats, `tokens` and attention stay with torch.

    Raises:
        InvalidRequest: another precision or backend, or a device that is not there.
        MissingDependency: the backend's package is not installed.
    """

    def __init__(
        self,
        backbone: nn.Module,
        preprocessing: Preprocessing,
        *,
        name: str = "encoder",
        device: str | torch.device | None = None,
        precision: str | None = None,
        config: ModelConfig | None = None,
        batch_size: int = BATCH,
        backend: str = "torch",
    ) -> None:
        parse_backend(backend, precision)  # a wrong name must not wait for the weights to be moved
        self.device = find_device(device)
        layout = torch.channels_last if is_convolutional(backbone) else torch.contiguous_format
        self.backbone = backbone.eval().to(self.device, torch.float32, memory_format=layout)  # type: ignore[call-overload]
        self.transform = EvalTransform(preprocessing)
        self.name = name
        self.config = config
        self.batch_size = batch_size
        network = Network(self.backbone, preprocessing).to(self.device)
        self.backend = open_backend(
            backend, network, self.device, precision=precision, identity=lambda: self.fingerprint
        )

    @property
    def precision(self) -> str:
        """What the backend computes in: "fp32" or "bf16"."""
        return self.backend.precision

    @property
    def _torch_precision(self) -> str:
        """What torch computes in beside another backend; fp32 is the faster there on most processors."""
        return "bf16" if self.backend.name in ("torch-bf16", "compile-bf16") else "fp32"

    @property
    def embed_dim(self) -> int:
        """D, length of a vector."""
        return vector_length(self.backbone)

    @property
    def fingerprint(self) -> str:
        """32 hex digits of the SHA-256 of weights and preprocessing: the same on every device and backend."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint_of(self.backbone, self.transform.preprocessing, self.config)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, *, revision: str | None = None, device: str | None = None, precision: str = "fp32"
    ) -> Encoder:
        """`load_encoder`, for the habit: ORG/NAME that is no folder here is taken from the Hub, as of a revision."""
        named = str(source)
        if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", named) and not Path(named).exists():
            named = f"hf-hub:{named}"
        return load_encoder(f"{named}@{revision}" if revision else named, device=device, precision=precision)

    # ---- vectors

    def embed_each(self, images: Iterable[ImageLike] | Tensor) -> list[np.ndarray | ImageError]:
        """One entry an image: its (D,) float32 unit vector, or the ImageError that says why it has none.

        Args:
            images: paths, bytes, PIL images, arrays (H, W, 3) of uint8 or (H, W) of gray; or a tensor or array
                (N, 3, H, W): uint8 RGB gets the whole transform, float is taken as transformed already.

        Raises:
            InvalidRequest: a tensor of another shape, or something that is no image.
        """
        return list(self.embed_in_order(images))

    def embed(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """(N, D) float32, unit rows.

        Raises:
            ImageError: the first image that cannot be read; its message names the image.
        """
        images = as_tensor(images)
        images = images if isinstance(images, Tensor) else as_list(images)
        rows = []
        for index, result in enumerate(self.embed_in_order(images)):
            if isinstance(result, ImageError):
                raise result.for_image(images[index], index) from result
            rows.append(result)
        return np.stack(rows) if rows else np.zeros((0, self.embed_dim), np.float32)

    def embed_in_order(
        self, images: Iterable[ImageLike | Stored] | Tensor, *, unit: bool = True
    ) -> Iterator[np.ndarray | ImageError]:
        """`embed_each` for any number of images, one result after the other; those ahead are decoded meanwhile.

        Args:
            images: as there, or what has a `read` that gives the bytes of one; taken a few batches ahead.
            unit: False: vectors as the network gives them.
        """
        images = as_tensor(images)
        if isinstance(images, Tensor):
            if images.dtype == torch.uint8:
                for crops in crops_of(images, self.transform, self.batch_size):
                    yield from self.forward_crops(crops, unit=unit)
                return
            for x in self._inputs(images):
                yield from self._rows(self._forward(x, lambda backbone, x: backbone(x)), unit)
            return
        for crops in self._prepared(images):
            good = [crop for crop in crops if isinstance(crop, np.ndarray)]
            vectors = iter(self.forward_crops(np.stack(good), unit=unit) if good else ())
            for crop in crops:
                yield crop if isinstance(crop, ImageError) else next(vectors)

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """As `embed_each`, but (D,) as the network gives it, not brought to length 1."""
        return list(self.embed_in_order(images, unit=False))

    def tokens(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """The feature map before pooling, not normalized: (N, h, w, D) float32.

        Raises:
            ImageError: the first image that cannot be read.
            InvalidRequest: there is no image.
        """
        images = as_tensor(images)
        inputs = self._inputs(images) if isinstance(images, Tensor) else self._read(as_list(images))
        maps = [self._forward(x, feature_map) for x in inputs if len(x)]
        if not maps:
            raise InvalidRequest("No image was given: tokens needs at least one.")
        return np.concatenate(maps)

    # ---- the two halves, for programs that decode and batch on their own

    def prepare(self, image: ImageLike | Stored) -> np.ndarray:
        """(S, S, 3) uint8: one image decoded, resized and cropped.

        Raises:
            ImageError: it cannot be read.
        """
        return self.transform.read(readable(image))

    def forward_crops(self, crops: np.ndarray | Tensor, *, unit: bool = True) -> np.ndarray:
        """(N, S, S, 3) uint8 from `prepare` -> (N, D) float32 in one batch, rows of length 1 unless told otherwise."""
        return self._rows(self.backend.run(np.asarray(crops)), unit)

    def _prepared(self, images: Iterable[ImageLike | Stored]) -> Iterator[list[np.ndarray | ImageError]]:
        """Yield batches of crops, in order; other threads prepare the next batch while the caller uses this one."""

        def attempt(image: ImageLike | Stored) -> np.ndarray | ImageError:
            try:
                return self.prepare(image)
            except ImageError as error:
                return error

        for _, crops in read_ahead(batches(images, self.batch_size), attempt, os.cpu_count() or 1):
            yield crops

    def _read(self, images: list[ImageLike]) -> Iterator[Tensor]:
        """Batches (B, 3, S, S) float of images; raises the first ImageError."""
        seen = 0
        for crops in self._prepared(images):
            for index, crop in enumerate(crops, seen):
                if isinstance(crop, ImageError):
                    raise crop.for_image(images[index], index) from crop
            seen += len(crops)
            yield self.transform.normalise(np.stack(crops))  # type: ignore[arg-type]

    def _inputs(self, images: Tensor) -> Iterator[Tensor]:
        """Batches (B, 3, S, S) float of a uint8 or an already transformed tensor."""
        if images.dtype == torch.uint8:
            return map(self.transform.normalise, crops_of(images, self.transform, self.batch_size))
        return transformed_batches(images, input_side(self.backbone), self.name, self.batch_size)

    def _rows(self, features: np.ndarray, unit: bool) -> np.ndarray:
        if features.shape[1:] != (self.embed_dim,):
            raise InvalidRequest(
                f"{self.name} gives {features.shape[1:]} numbers an image where a vector of {self.embed_dim} was "
                "expected: take a network that pools, built without classifier."
            )
        return F.normalize(torch.from_numpy(features)).numpy() if unit else features

    def _forward(self, x: Tensor, compute: Callable[[nn.Module, Tensor], Tensor]) -> np.ndarray:
        """What only torch does: compute(backbone, x) as float32."""
        return forward(partial(compute, self.backbone), x, self.device, self._torch_precision)


def load_encoder(
    source: str | Path, *, device: str | None = None, backend: str = "torch", precision: str | None = None
) -> Encoder:
    """The encoder of any source that `nnclr_hub.hub.sources` reads, verified.

    Args:
        source: a registered name, hf-hub:org/repo@rev, a model folder, timm:NAME, random:ARCH@SEED, ...
        device: None: the GPU if there is one.
        backend: what runs the network: "torch", which gives timm's vectors to 1e-5; "openvino", "openvino-bf16",
            "onnx", "compile", ...; or "auto" for the fastest here whose vectors have cosine 0.999 or more to those.
        precision: "fp32" or "bf16", where the backend's name does not say; None: fp32, and any under "auto".

    Raises:
        UnknownModel, ModelFilesMissing, TamperedModel, WeightsMismatch.
        InvalidRequest: the source cannot be read, the device is not there, or the backend cannot run the network.
        MissingDependency: the backend's package is not installed.
    """
    how: dict[str, Any] = {"name": str(source), "device": device, "backend": backend, "precision": precision}
    found = resolve(str(source))
    if found.folder is None:
        return _load_from_timm(found.architecture, found.seed, how)
    config = found.config
    preprocessing = Preprocessing.from_pretrained_cfg(config.pretrained_cfg)
    with torch.random.fork_rng(devices=[]):  # the fresh weights, soon gone, must not move the caller's generator
        if found.seed is not None:
            torch.manual_seed(found.seed)
            config = replace(config, nnclr={})  # what is told there is true of the trained weights alone
        backbone = create_backbone(config.architecture, model_args=config.model_args)
    if found.seed is None:
        load_state(backbone, read_weights(found.folder, found.weights), str(source))
    return Encoder(backbone, preprocessing, config=config, **how)


def _load_from_timm(architecture: str, seed: int | None, how: dict[str, Any]) -> Encoder:
    """timm's own weights, or random ones from a seed that leave the global generator as it was."""
    if seed is None:
        backbone = create_backbone(architecture, pretrained=True)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = create_backbone(architecture)
    return Encoder(backbone, Preprocessing.from_pretrained_cfg(backbone.pretrained_cfg), **how)  # type: ignore[arg-type]
