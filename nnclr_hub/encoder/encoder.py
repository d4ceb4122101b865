"""Encoder: images in, unit vectors out.

encoder = load_encoder("nnclr_resnet18_starter")
encoder.embed(["a.jpg", "b.png"])               # (2, D) float32, unit rows
encoder.embed_each(["a.jpg", "broken.jpg"])     # [(D,) float32, ImageError]
encoder.embed_in_order(paths)                   # an iterator over the same, for any number of images
encoder.tokens(["a.jpg"])                       # (1, h, w, D)
encoder.attention("a.jpg", Point(120, 80))      # AttentionMap: similarity of each cell to a point

encoder.forward_crops(np.stack([encoder.prepare("a.jpg")]))    # the two halves of `embed`
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, cast, overload

import numpy as np

from nnclr_hub.arguments import Checked
from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings, Query
from nnclr_hub.encoder.backends import Backend, open_backend, parse_backend
from nnclr_hub.encoder.crops import MAX_CROPS, crop_views
from nnclr_hub.encoder.descriptors import Appended
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.encoder.fingerprint import fingerprint_of, with_reading
from nnclr_hub.encoder.preprocessing import (
    EvalTransform,
    Preprocessing,
    Transform,
    as_list,
    as_source,
    as_tensor,
    crops_of,
    is_tensor,
    transformed_batches,
    unit_rows,
    weigh,
)
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.html_table import html_table
from nnclr_hub.hub.layout import ModelConfig
from nnclr_hub.images.decode import DecodableImage
from nnclr_hub.images.pool import LIGHT, TOGETHER, active_pool, attempt_each
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.read_ahead import batches, read_ahead

if TYPE_CHECKING:  # an encoder with an exported network embeds without torch
    import torch
    from torch import Tensor, nn

    from nnclr_hub.encoder.attention.extractor import AttentionExtractor

BATCH = 64


class Encoder(Checked):
    """A backbone with its preprocessing; safe to call from many threads.

    Args:
        backbone: (B, C, S, S) float -> (B, D), put in evaluation mode, with weights as float32; or what builds it, if
            `about` is given. It is then built only if something other than vectors of images is needed.
        preprocessing: the preprocessing that the backbone expects; or a transform that replaces it.
        name: its source.
        device: None: the GPU if there is one.
        precision: "fp32" or "bf16"; None: as named by `backend`, or else fp32.
        config: the config.json of its model folder, if any.
        backend: the library that runs the network, one of `nnclr_hub.encoder.backends`; "auto" for the one that a rule
            selects; or an open one, or what opens it. Float tensors, `tokens` and attention always run in torch.
        fingerprint: default: a hash of weights and preprocessing.
        about: what is recorded of a backbone that is not built: ABOUT_GRAPH of `hub.layout`.

    Raises:
        InvalidRequest: an unknown precision or backend, or a device that does not exist.
        MissingDependency: the backend's package is not installed.
    """

    UNCHECKED = ("prepare_each", "forward_crops")

    def __init__(
        self,
        backbone: nn.Module | Callable[[], nn.Module],
        preprocessing: Preprocessing | Transform,
        *,
        name: str = "encoder",
        device: str | torch.device | None = None,
        precision: str | None = None,
        config: ModelConfig | None = None,
        batch_size: int = BATCH,
        backend: str | Backend | Callable[..., Backend] = "torch",
        fingerprint: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(backend, str):
            parse_backend(backend, precision)  # refuse an invalid name before the weights are moved
            backend = partial(open_backend, backend, precision=precision)
        self._build = partial(_same, backbone) if about is None else backbone
        self._about, self._device = about or {}, device
        self._built: list[nn.Module] = []  # the backbone, shared by copies
        self._building = threading.Lock()
        self.transform = EvalTransform(preprocessing) if isinstance(preprocessing, Preprocessing) else preprocessing
        self._fingerprint = fingerprint or self._about.get("fingerprint")
        self.appended: Appended | None = None  # to all vectors of the network
        self.crops = 1
        self.name, self.config, self.batch_size = name, config, batch_size
        if callable(backend):
            from nnclr_hub.encoder.backends.with_torch import Network

            network = Network(self.backbone, self.transform.preprocessing).to(self.device)
            backend = cast(Backend, backend(network, self.device))
        self.backend: Backend = backend

    def with_crops(self, crops: int) -> Self:
        """Return this encoder with vectors that are the mean over several crops of each image, see `encoder.crops`.

        They have their own fingerprint, for caches; they are not stored in collections under it.

        Args:
            crops: per image, 1 to 128.
        """
        if not 1 <= crops <= MAX_CROPS:
            raise InvalidRequest(f"crops must be between 1 and {MAX_CROPS}, got {crops}.")
        other = copy.copy(self)
        other.crops = crops
        return other

    def __repr__(self) -> str:
        backbone = self.config.architecture if self.config else type(self.backbone).__name__
        side, device = self.transform.preprocessing.input_size, self._device or self.device
        return (
            f"Encoder({self.name!r}, backbone={backbone}, dim={self.embed_dim}, input={side}x{side}, "
            f"backend={self.backend.name}, device={device}, fingerprint={self.fingerprint[:8]})"
        )

    def _repr_html_(self) -> str:
        side = self.transform.preprocessing.input_size
        about = {"encoder": self.name, "dim": self.embed_dim, "input": f"{side} x {side} pixels"}
        about |= {"backend": self.backend.name, "device": str(self._device or self.device)}
        return html_table(about | {"fingerprint": self.fingerprint})

    @cached_property
    def device(self) -> torch.device:
        """The device of the torch network."""
        from nnclr_hub.encoder.device import find_device

        return find_device(self._device)

    @property
    def backbone(self) -> nn.Module:
        """The network in torch, in evaluation mode, on `device`."""
        import torch

        from nnclr_hub.encoder.backbones import is_convolutional

        with self._building:  # built once, whichever thread comes first
            if not self._built:
                backbone = self._build()
                layout = torch.channels_last if is_convolutional(backbone) else torch.contiguous_format
                backbone = backbone.eval().to(self.device, torch.float32, memory_format=layout)  # type: ignore[call-overload]
                self._built.append(backbone)
            return self._built[0]

    @property
    def weight_bytes(self) -> int:
        """Size of the torch network's weights."""
        known = self._about.get("weight_bytes")
        return known or sum(tensor.nbytes for tensor in self.backbone.state_dict().values())

    @property
    def precision(self) -> str:
        """The precision of the backend: "fp32" or "bf16"."""
        return self.backend.precision

    @property
    def embed_dim(self) -> int:
        """D, the length of a vector."""
        return self._network_dim + (self.appended.dim if self.appended else 0)

    @property
    def _network_dim(self) -> int:
        if "embed_dim" in self._about:
            return self._about["embed_dim"]
        from nnclr_hub.encoder.network_output import vector_length

        return vector_length(self.backbone)

    @property
    def reading(self) -> ImageReading:
        """The page and the channels that are read of a file."""
        return self.transform.preprocessing.reading

    @property
    def fingerprint(self) -> str:
        """32 hex digits of the SHA-256 of weights and preprocessing; equal on every device and backend."""
        joined = self.appended.joined_fingerprint if self.appended else str
        found = with_reading(joined(self.network_fingerprint), self.reading)
        return found if self.crops == 1 else f"{found}-{self.crops}-crops"

    @property
    def network_fingerprint(self) -> str:
        """The fingerprint without `reading` and `appended`, as one network serves all of them."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint_of(self.backbone, self.transform.preprocessing, self.config)
        return self._fingerprint

    # ---- vectors

    def embed_each(self, images: Iterable[ImageLike] | Tensor, *, crops: int = 1) -> list[np.ndarray | ImageError]:
        """Return a (D,) float32 unit vector per image, or the ImageError of an image that cannot be read.

        Args:
            images: paths, addresses, bytes, PIL images, arrays (H, W, 3) of uint8 or (H, W) of gray; or a tensor or
                array (N, 3, H, W): uint8 RGB gets the whole transform, float must be transformed already.
            crops: number of crops per image, 1 to 128, whose unit vectors are averaged; see `encoder.crops`.

        Raises:
            InvalidRequest: a tensor has another shape, an object is not an image, or `crops` is out of range.
        """
        return list(self.embed_in_order(images, crops=crops))

    def features_each(self, images: Iterable[ImageLike]) -> list[np.ndarray | ImageError]:
        """Return the results of `embed_each` without normalization; of `appended`, each part has length 1."""
        return list(self.embed_in_order(images, unit=False))

    def embed(self, images: Iterable[ImageLike] | Tensor, *, crops: int = 1) -> np.ndarray:
        """Return (N, D) float32, unit rows; for the arguments see `embed_each`.

        Raises:
            ImageError: of the first image that cannot be read; the message names it.
        """
        images = as_tensor(images, self.transform.preprocessing.in_chans)
        images = images if is_tensor(images) else as_list(images)
        rows = []
        for index, result in enumerate(self.embed_in_order(images, crops=crops)):
            if isinstance(result, ImageError):
                raise result.for_image(images[index], index) from result
            rows.append(result)
        return np.stack(rows) if rows else np.zeros((0, self.embed_dim), np.float32)

    def embed_in_order(
        self, images: Iterable[ImageLike] | Tensor, *, unit: bool = True, crops: int = 1
    ) -> Iterator[np.ndarray | ImageError]:
        """Yield the results of `embed_each` one by one for any number of images, decoding ahead in other threads.

        Args:
            images: see `embed_each`; also each `Source`. Consumed two batches ahead.
            unit: False: vectors are not normalized.
        """
        if crops != 1:
            yield from self.with_crops(crops).embed_in_order(images, unit=unit)
            return
        images = as_tensor(images, self.transform.preprocessing.in_chans)
        if not is_tensor(images):
            for prepared in self._prepared(images):
                good = [crop for crop in prepared if isinstance(crop, np.ndarray)]
                vectors = iter(self._forward_prepared(np.stack(good), unit) if good else ())
                for crop in prepared:
                    yield crop if isinstance(crop, ImageError) else next(vectors)
        elif self.crops != 1:
            raise InvalidRequest("crops needs images, not a tensor: pass files, PIL images or arrays (H, W, 3).")
        elif not images.is_floating_point():
            for batch in crops_of(images, self.transform, self.batch_size):
                yield from self.forward_crops(batch, unit=unit)
        elif self.appended:
            raise InvalidRequest(f"{self.name} describes uint8 pixels; pass images, or a uint8 tensor.")
        else:
            for x in self._inputs(images):
                yield from self._rows(self._forward(x, lambda backbone, x: backbone(x)), unit)

    def tokens(self, images: Iterable[ImageLike] | Tensor) -> np.ndarray:
        """Return the feature maps before pooling, not normalized: (N, h, w, D) float32.

        Raises:
            ImageError: of the first image that cannot be read.
            InvalidRequest: the list is empty.
        """
        from nnclr_hub.encoder.network_output import feature_map

        images = as_tensor(images, self.transform.preprocessing.in_chans)
        inputs = self._inputs(images) if is_tensor(images) else self._readable(as_list(images))
        maps = [self._forward(x, feature_map) for x in inputs if len(x)]
        if not maps:
            raise InvalidRequest("The list of images is empty; tokens needs at least one.")
        return np.concatenate(maps)

    # ---- attention

    @cached_property
    def attention_extractor(self) -> AttentionExtractor:
        """The steps of `attention`, for programs that run each in a separate thread."""
        from nnclr_hub.encoder.attention.extractor import AttentionExtractor

        return AttentionExtractor(self.backbone, self.transform, self.device, self.name)

    @property
    def heads(self) -> int | None:
        """Number of attention heads that `attention` selects from; None without [CLS], as in a ResNet."""
        known = "heads" in self._about  # None is known, too
        return self._about["heads"] if known else self.attention_extractor.heads

    def attention_maps(
        self, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike] = ()
    ) -> list[AttentionMap]:
        """Return the map of the image, or one per target; `attention` with all settings in one object."""
        return self.attention_extractor(settings, image, targets)

    @overload
    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        target: ImageLike | None = None,
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int | None = None,
        *,
        center_prior: bool | None = None,
    ) -> AttentionMap: ...

    @overload
    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        *,
        target: list[Any] | tuple[Any, ...],
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int | None = None,
        center_prior: bool | None = None,
    ) -> list[AttentionMap]: ...

    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        target: ImageLike | list[Any] | tuple[Any, ...] | None = None,
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int | None = None,
        *,
        center_prior: bool | None = None,
    ) -> AttentionMap | list[AttentionMap]:
        """Return where the encoder attends in the whole, uncropped image; see `nnclr_hub.encoder.attention`.

        Args:
            query: Point or Box in pixels of the upright original; None: the whole image.
            target: another image in which to search for the query, or a list of up to 6; their maps share one scale.
            similarity: "dot" as in the paper, or "cosine".
            head: number of a head of the last block, from 0; None: the mean of all. Only for the row of [CLS].
            threshold: keep the fewest patches that contain this share of the row's sum. Only for the row of [CLS].
            max_side: maximum of the input's long side, in pixels; None: 1024. Less if the map would exceed 4096 cells,
                as with patches of 8 above 512 x 512.
            center_prior: whether the overlay of the whole image shows the map times a Gaussian in the center; see
                `AttentionSettings`.

        Returns:
            The map of the image or of the target; a list for a list of targets.

        Raises:
            ImageError: an image cannot be read.
            InvalidRequest: the network or the image does not support the settings.
        """
        several = isinstance(target, list | tuple)
        targets: list[Any] = [] if target is None else list(target) if several else [target]
        if several and not targets:
            raise InvalidRequest("The list of target images is empty; leave target out, or name at least one image.")
        settings = AttentionSettings(query, similarity, head, threshold, max_side, center_prior)
        maps = self.attention_maps(settings, image, targets)
        return maps if several else maps[0]

    # ---- the two halves of `embed`, for programs that decode and batch themselves

    def prepare(self, image: ImageLike) -> np.ndarray:
        """Decode, resize and crop one image: (S, S, 3) uint8.

        Raises:
            ImageError: the image cannot be read.
        """
        return self.transform.read(as_source(image))

    def prepare_each(self, images: Sequence[ImageLike]) -> list[np.ndarray | Exception]:
        """Return for each image what `prepare` returns, or the exception that it raises."""
        sources = attempt_each(as_source, as_list(images))  # those stored elsewhere may be unreadable
        crops = iter(self.transform.read_each([one for one in sources if not isinstance(one, Exception)]))
        return [one if isinstance(one, Exception) else next(crops) for one in sources]

    def forward_crops(self, crops: np.ndarray | Tensor, *, unit: bool = True) -> np.ndarray:
        """Run one batch of crops from `prepare` through the network: (N, S, S, 3) uint8 -> (N, D) float32."""
        crops = np.asarray(crops)
        if crops.ndim != 4:
            raise InvalidRequest(f"crops must be an array (N, S, S, C), got shape {crops.shape}.")
        rows = self._rows(self.backend.run(crops), unit or bool(self.appended))
        return self.appended.join(rows, crops, unit=unit) if self.appended else rows

    # ---- inside

    def _prepared(self, images: Iterable[ImageLike]) -> Iterator[list[np.ndarray | ImageError]]:
        """Yield batches of crops, in order; other threads prepare the next batch while the caller uses this one."""

        def views(image: ImageLike) -> np.ndarray:
            decoded = self.transform.read_image(cast(DecodableImage, as_source(image)))
            return np.stack([self.transform.crop(view) for view in crop_views(decoded, self.crops)])

        def attempt(images: Sequence[ImageLike]) -> list[np.ndarray | ImageError]:
            crops = self.prepare_each(images) if self.crops == 1 else attempt_each(views, images)
            for crop in crops:
                if not isinstance(crop, np.ndarray | ImageError):
                    raise crop
            return cast(list[np.ndarray | ImageError], crops)

        # processes take several small images at a time, which saves messages
        most = TOGETHER if active_pool() is not None and self.crops == 1 else 1
        whole = batches(images, max(1, self.batch_size // self.crops))
        parts = (list(batches(batch, most, weigh, LIGHT)) for batch in whole)
        for _, results in read_ahead(parts, attempt, usable_cores()):
            yield list(chain.from_iterable(results))

    def _forward_prepared(self, crops: np.ndarray, unit: bool) -> np.ndarray:
        """Return (N, D) for (N, S, S, C); of several crops (N, crops, S, S, C) the means of their unit vectors."""
        if self.crops == 1:
            return self.forward_crops(crops, unit=unit)
        flat = crops.reshape(-1, *crops.shape[2:])
        rows = [self.forward_crops(flat[at : at + self.batch_size]) for at in range(0, len(flat), self.batch_size)]
        means = np.concatenate(rows).reshape(len(crops), self.crops, -1).mean(axis=1)
        return unit_rows(means) if unit else means

    def _inputs(self, images: Tensor) -> Iterator[Tensor]:
        """Return batches (B, C, S, S) float of a tensor of uint8, or of one that is transformed."""
        from nnclr_hub.encoder.backbones import input_side

        if not images.is_floating_point():
            return map(self.transform.normalize, crops_of(images, self.transform, self.batch_size))
        side, channels = input_side(self.backbone), self.transform.preprocessing.in_chans
        return transformed_batches(images, side, self.name, self.batch_size, channels)

    def _readable(self, images: Sequence[ImageLike]) -> Iterator[Tensor]:
        """Yield batches (B, C, S, S) float; raise the ImageError of the first image that cannot be read."""
        seen = 0
        for crops in self._prepared(images):
            for index, crop in enumerate(crops, seen):
                if isinstance(crop, ImageError):
                    raise crop.for_image(images[index], index) from crop
            seen += len(crops)
            yield self.transform.normalize(np.stack(crops))  # type: ignore[arg-type]

    def _rows(self, features: np.ndarray, unit: bool) -> np.ndarray:
        if features.shape[1:] != (self._network_dim,):
            raise InvalidRequest(
                f"{self.name} returns {features.shape[1:]} numbers per image instead of {self._network_dim}; "
                "use a network with pooling and without classifier."
            )
        return unit_rows(features) if unit else features

    def _forward(self, x: Tensor, compute: Callable[[nn.Module, Tensor], Tensor]) -> np.ndarray:
        from nnclr_hub.encoder.backends.with_torch import forward

        # next to another backend, fp32 is faster in torch on most processors
        precision = "bf16" if self.backend.name in ("torch-bf16", "compile-bf16") else "fp32"
        return forward(partial(compute, self.backbone), x, self.device, precision)


def _same(backbone: Any) -> Any:
    return backbone
