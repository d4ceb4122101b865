"""Preprocessing: images as callers pass them, resized, cropped and normalized as timm's evaluation transform does."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from PIL import Image

from nnclr_hub.errors import InvalidRequest, UnsupportedImage, WeightsMismatch
from nnclr_hub.images.channels import AnyImage, ChannelImage
from nnclr_hub.images.decode import DecodableImage, DecodedImage, decode_any, decode_scaled, with_bands
from nnclr_hub.images.pool import LIGHT, TOGETHER, attempt_each, read_packed, run_isolated, run_isolated_each
from nnclr_hub.images.readers.stack import check_fit
from nnclr_hub.images.reading import MAX_CHANNELS, PLAIN, ImageReading
from nnclr_hub.images.source import Source

if TYPE_CHECKING:  # decoding processes use the crop, and importing torch would make them slow to start
    from torch import Tensor
    from typing_extensions import TypeIs

    from nnclr_hub.hub.layout import ModelConfig

MAX_INPUT = 8192  # pixels; a larger value is a typing error and would use up the memory
CROP_MODES = ("center", "squash", "border")
T = TypeVar("T")
ImageLike = DecodableImage | np.ndarray
TINY = 1e-12
_GRAY = (np.uint8, np.uint16, np.int32, np.float32)  # types for which Pillow has a mode
_RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class Preprocessing:
    """The preprocessing that an encoder expects: the relevant fields of timm's pretrained_cfg.

    input_size: side of the square input, in pixels.
    crop_pct: a side is resized to input_size / crop_pct before the center is cropped.
    mean, std: per channel, for pixels in [0, 1].
    interpolation: "bicubic" or "bilinear", antialiased.
    crop_mode: the side to resize: "center" the short one; "squash" both, ignoring the aspect ratio; "border" the long
        one, where the rest of the square is filled with the mean color.
    reading: the page and the channels that are read of a file.
    """

    input_size: int = 224
    crop_pct: float = 0.875
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop_mode: str = "center"
    reading: ImageReading = PLAIN

    def __post_init__(self) -> None:
        if self.interpolation not in _RESAMPLING:
            raise InvalidRequest(f"interpolation must be one of {', '.join(_RESAMPLING)}, got {self.interpolation!r}.")
        if self.crop_mode not in CROP_MODES:
            raise InvalidRequest(f"crop_mode must be one of {', '.join(CROP_MODES)}, got {self.crop_mode!r}.")
        if not 1 <= self.input_size <= MAX_INPUT or not 0 < self.crop_pct <= 1:
            raise InvalidRequest(
                f"input_size must be from 1 to {MAX_INPUT} and crop_pct in (0, 1], got {self.input_size} and "
                f"{self.crop_pct}."
            )
        colors = (*self.mean, *self.std)
        same = len(self.mean) == len(self.std) <= MAX_CHANNELS
        if not same or not self.mean or not all(map(math.isfinite, colors)) or min(self.std) <= 0:
            raise InvalidRequest(
                f"mean and std must be a finite number for each channel, std above 0, got {self.mean} and {self.std}."
            )
        self.check_reading(self.reading)

    def check_reading(self, reading: ImageReading) -> None:
        """Check that the channels of a reading fit; raise InvalidRequest if not."""
        if reading.channels:
            try:
                check_fit(len(reading.channels), self.in_chans, chosen=True)
            except UnsupportedImage as error:
                raise InvalidRequest(str(error)) from error

    def with_channels(self, in_chans: int) -> Self:
        """Return a copy for another number of channels, whose mean and std are repeated as timm repeats weights."""
        return replace(self, mean=_repeated(self.mean, in_chans), std=_repeated(self.std, in_chans))

    @property
    def steps(self) -> dict[str, Any]:
        """The fields as JSON values; `reading` in its text form, and only if it selects something."""
        fields = {name: value for name, value in vars(self).items() if name != "reading"}
        return fields if self.reading == PLAIN else {**fields, "reading": str(self.reading)}

    @property
    def in_chans(self) -> int:
        """Number of channels of the input, as timm names it."""
        return len(self.mean)

    @classmethod
    def of_model(cls, config: ModelConfig) -> Self:
        """Return the preprocessing that a model folder records, with what the encoder was trained to read of a file.

        Raises:
            WeightsMismatch, InvalidRequest: a field has an invalid value.
        """
        reading = ImageReading.parse(str(config.nnclr.get("reading", "")))
        return replace(cls.from_pretrained_cfg(config.pretrained_cfg), reading=reading)

    @classmethod
    def from_pretrained_cfg(cls, config: Mapping[str, Any]) -> Self:
        """Read timm's fields; a missing field has timm's default, which is also the default of this class.

        Raises:
            WeightsMismatch: a field has an invalid value.
        """
        named = config.get("interpolation")
        try:
            size = tuple(map(int, config.get("input_size", (3, cls.input_size, cls.input_size))))
            if len(size) != 3 or size[0] < 1 or size[1] != size[2]:
                raise ValueError(f"input_size {list(size)} is not a square (C, S, S)")
            mean, std = (
                tuple(map(float, config[name])) if config.get(name) else _repeated(default, size[0])
                for name, default in (("mean", cls.mean), ("std", cls.std))
            )
            if len(mean) != size[0]:
                raise ValueError(f"mean has {len(mean)} values for {size[0]} channels")
            return cls(
                input_size=size[-1],
                crop_pct=float(cls.crop_pct if config.get("crop_pct") is None else config["crop_pct"]),
                mean=mean,
                std=std,
                interpolation=cls.interpolation if named in (None, "", "random") else str(named),
                crop_mode=str(config.get("crop_mode") or cls.crop_mode),
            )
        except (TypeError, ValueError, OverflowError) as error:
            reason = str(error).partition(":")[0].rstrip(".")
            raise WeightsMismatch(
                f"The preprocessing of this model is not supported ({reason}); correct pretrained_cfg in its "
                "config.json, or choose another model."
            ) from error


def _repeated(values: tuple[float, ...], count: int) -> tuple[float, ...]:
    """Return so many values, from the first on again where there are fewer; the mean of all for a single one."""
    if count == len(values):
        return values
    return (sum(values) / len(values),) if count == 1 else tuple(islice(cycle(values), count))


class Transform:
    """From any source that `decode_image` reads to the network's input; see its two subclasses."""

    preprocessing: Preprocessing

    def crop(self, image: AnyImage) -> np.ndarray:
        """Return one crop (S, S, C) of an upright image that `read_image` returned, or of a part of it."""
        raise NotImplementedError

    def resized(self, image: AnyImage, size: tuple[int, int]) -> np.ndarray:
        """Return (h, w, C) uint8 of an upright image, resized to a width and height without a crop."""
        raise NotImplementedError

    def normalize(self, crops: np.ndarray | Tensor) -> Tensor:
        """Return the network's input (N, C, S, S) float32 from crops."""
        raise NotImplementedError

    def read_image(self, source: DecodableImage) -> AnyImage:
        """Return the upright image, with the channels of the input."""
        return decode_any(source, self.preprocessing.reading, self.preprocessing.in_chans)

    def read(self, source: DecodableImage) -> np.ndarray:
        """Return one crop (S, S, C)."""
        return self.crop(self.read_image(source))

    def read_each(self, sources: Sequence[DecodableImage]) -> list[np.ndarray | Exception]:
        """Return for each source what `read` returns, or the exception that it raises."""
        return attempt_each(self.read, sources)

    def __call__(self, image: DecodableImage) -> Tensor:
        """Return (C, S, S) float32."""
        return self.normalize(self.read(image)[None])[0]


class EvalTransform(Transform):
    """timm's evaluation transform: resize, center crop, normalize. Crops are uint8.

    The part that the crop keeps is cut out before the resize. Otherwise an image of 1 x 3000 pixels would become one
    of 196 megapixels on the way. A large JPEG is not decoded in full.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def read(self, source: DecodableImage) -> np.ndarray:
        return run_isolated(_crop_of, source, self.preprocessing)

    def read_each(self, sources: Sequence[DecodableImage]) -> list[np.ndarray | Exception]:
        return run_isolated_each(_crop_of, sources, self.preprocessing)

    def crop(self, image: AnyImage) -> np.ndarray:
        return self._crop(DecodedImage(with_bands(image, self.preprocessing.in_chans), image.size))

    def resized(self, image: AnyImage, size: tuple[int, int]) -> np.ndarray:
        resample = _RESAMPLING[self.preprocessing.interpolation]
        return np.array(image if image.size == size else image.resize(size, resample))

    def decoded(self, source: DecodableImage) -> np.ndarray:
        """Return what `read` does, decoded in this process."""
        return self._crop(decode_scaled(source, self._side, self.preprocessing.reading, self.preprocessing.in_chans))

    @property
    def _side(self) -> int:
        return math.floor(self.preprocessing.input_size / self.preprocessing.crop_pct)

    def _crop(self, decoded: DecodedImage) -> np.ndarray:
        size, (width, height) = self.preprocessing.input_size, decoded.size
        wide, high = self._resized_to(width, height)
        kept = min(size, wide), min(size, high)
        left, top = round((wide - kept[0]) / 2), round((high - kept[1]) / 2)
        across, down = width / wide / decoded.scale, height / high / decoded.scale  # image pixels per resized pixel
        x, y = decoded.corner
        box = (x + left * across, y + top * down, x + (left + kept[0]) * across, y + (top + kept[1]) * down)
        resized = self._resize(decoded.image, box, kept)
        if kept == (size, size):  # filling a border that is not seen takes as long as decoding a small JPEG
            return np.array(resized)
        crop = np.empty((size, size, self.preprocessing.in_chans), np.uint8)
        crop[:] = [round(255 * value) for value in self.preprocessing.mean]
        column, row = (size - kept[0]) // 2, (size - kept[1]) // 2
        crop[row : row + kept[1], column : column + kept[0]] = np.asarray(resized)
        return crop

    def _resized_to(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height of an image before the crop, rounded as in timm."""
        side = self._side
        if self.preprocessing.crop_mode == "squash":
            return side, side
        if self.preprocessing.crop_mode == "border":
            ratio = max(width, height) / side
            return max(1, round(width / ratio)), max(1, round(height / ratio))
        return (side, int(side * height / width)) if width <= height else (int(side * width / height), side)

    def _resize(self, image: AnyImage, box: tuple[float, float, float, float], size: tuple[int, int]) -> AnyImage:
        resample = _RESAMPLING[self.preprocessing.interpolation]
        if box[0] >= 0 and box[1] >= 0 and box[2] <= image.width and box[3] <= image.height:
            return image.resize(size, resample, box=box)
        # with crop_pct 1, rounding can exceed the border by less than a pixel
        inside = (max(0.0, box[0]), max(0.0, box[1]), min(image.width, box[2]), min(image.height, box[3]))
        return image.resize(size, resample, box=inside)

    def normalize(self, crops: np.ndarray | Tensor) -> Tensor:
        """Return (N, C, S, S) float32 from uint8 (N, S, S, C), which stays channels last in memory, or (N, C, S, S)."""
        import torch

        pixels = torch.as_tensor(crops)
        if pixels.shape[-1] == self.preprocessing.in_chans:
            pixels = pixels.permute(0, 3, 1, 2)  # a view: the memory layout stays
        mean, std = (
            torch.tensor(values, device=pixels.device).view(1, -1, 1, 1)
            for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        return pixels.float().div_(255).sub_(mean).div_(std)


def _crop_of(source: DecodableImage, preprocessing: Preprocessing) -> np.ndarray:
    return EvalTransform(preprocessing).decoded(source)


# ------------------------------------------------------------------------------ images as callers pass them


def as_list(images: Iterable[ImageLike]) -> list[ImageLike]:
    """Return several images as a list; raise InvalidRequest for a single image."""
    one = isinstance(images, str | bytes | Path | Source | Image.Image | ChannelImage) or (
        isinstance(images, np.ndarray) and images.ndim < 4
    )
    if one or not isinstance(images, Iterable):
        raise InvalidRequest("images must be a list, even for a single image: encoder.embed([image]).")
    return list(images)


def as_source(image: ImageLike) -> DecodableImage:
    """Return one image in a form that `decode_image` takes; raise InvalidRequest for an array that is not one."""
    if not isinstance(image, np.ndarray):
        return read_packed(image)
    if image.ndim == 2 and image.dtype.kind in "uif" and image.size:  # gray, like a TIFF of that type
        wider = np.int32 if np.can_cast(image.dtype, np.int32) else np.float32
        return Image.fromarray(image if image.dtype in _GRAY else image.astype(wider))
    if image.dtype != np.uint8 or image.ndim != 3 or not 1 <= image.shape[2] <= MAX_CHANNELS or not image.size:
        raise InvalidRequest(
            f"An array must be (H, W, C) uint8, or (H, W) gray, got shape {image.shape} of {image.dtype}."
        )
    return Image.fromarray(image) if image.shape[2] == 3 else ChannelImage(image)


def weigh(image: ImageLike) -> int:
    """Return the bytes of an image that a decoding process may take with others; otherwise more than LIGHT."""
    if isinstance(image, Source):
        return LIGHT + 1 if image.box is not None else image.size or LIGHT // TOGETHER
    try:
        if isinstance(image, bytes | str | Path):
            return len(image) if isinstance(image, bytes) else os.path.getsize(image)
    except (OSError, ValueError):  # decoding reports the error
        return 0
    return LIGHT // TOGETHER if hasattr(image, "read") else LIGHT + 1


# ---- tensors


def is_tensor(images: object) -> TypeIs[Tensor]:
    """Return whether it is a tensor of torch; before torch is imported, nobody has one."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(images, torch.Tensor)


def as_tensor(images: T, channels: int = 3) -> T | Tensor:
    """Return a numpy array (N, C, H, W) as a tensor; anything else unchanged, also (N, H, W, C), which is N images.

    Raises:
        InvalidRequest: its type is neither uint8 nor a float type.
    """
    if not (isinstance(images, np.ndarray) and images.ndim == 4 and images.shape[1] == channels != images.shape[3]):
        return images
    _check_type(images.dtype == np.uint8 or images.dtype.kind == "f", images.dtype)
    import torch

    native = images.dtype.newbyteorder("=")
    return torch.from_numpy(np.require(images, native if native.itemsize <= 8 else np.float64, ["C", "W"]))


def crops_of(images: Tensor, transform: Transform, batch: int) -> Iterator[np.ndarray]:
    """Resize and crop (N, C, H, W) uint8; yield batches (B, S, S, C) uint8; raise InvalidRequest for other tensors."""
    import torch

    channels, size = transform.preprocessing.in_chans, transform.preprocessing.input_size
    _check_type(images.dtype == torch.uint8, images.dtype)
    _check_shape(images, channels)
    for part in images.split(batch):
        crops = np.zeros((len(part), size, size, channels), np.uint8)
        for crop, pixels in zip(crops, part.permute(0, 2, 3, 1).cpu().numpy(), strict=True):
            pixels = np.ascontiguousarray(pixels)
            crop[:] = transform.crop(Image.fromarray(pixels) if channels == 3 else ChannelImage(pixels))
        if len(crops):
            yield crops


def transformed_batches(images: Tensor, side: int | None, name: str, batch: int, channels: int) -> Iterator[Tensor]:
    """Check (N, C, H, W) float that is transformed already; return batches (B, C, H, W) float32.

    Args:
        side: the only input size that the network takes, in pixels; None: any.

    Raises:
        InvalidRequest: another shape or size, or values that are not finite.
    """
    _check_shape(images, channels)
    if side is not None and tuple(images.shape[2:]) != (side, side):
        raise InvalidRequest(
            f"Transformed images for {name} must be {side} x {side} pixels, got {images.shape[3]} x {images.shape[2]}; "
            "pass uint8 RGB instead, or use encoder.transform."
        )
    if not images.isfinite().all():
        raise InvalidRequest("The tensor of images contains NaN or infinity; check how it was computed.")
    return (x.float() for x in images.split(batch))


def _check_type(allowed: bool, dtype: object) -> None:
    if not allowed:
        raise InvalidRequest(f"An array or tensor of images must be uint8 RGB or transformed float, got {dtype}.")


def _check_shape(images: Tensor, channels: int) -> None:
    if images.ndim != 4 or images.shape[1] != channels or 0 in images.shape[2:]:
        raise InvalidRequest(f"A tensor of images must be (N, {channels}, H, W), got {tuple(images.shape)}.")


def unit_rows(raw: np.ndarray) -> np.ndarray:
    """Return (N, D) float32 with rows of length 1."""
    return raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), TINY)
