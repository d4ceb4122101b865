"""Preprocessing: resize, crop and normalize an image as timm's evaluation transform does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from PIL import Image

from nnclr_hub.encoder.decoding import DecodedImage, Source, decode_scaled, run_isolated, run_isolated_each
from nnclr_hub.errors import InvalidRequest, WeightsMismatch

if TYPE_CHECKING:  # decoding processes use the crop, and importing torch would make them slow to start
    from torch import Tensor

MAX_INPUT = 8192  # pixels; a larger value is a typing error and would use up the memory
CROP_MODES = ("center", "squash", "border")
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
    """

    input_size: int = 224
    crop_pct: float = 0.875
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop_mode: str = "center"

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
        if len(self.mean) != 3 or len(self.std) != 3 or not all(map(math.isfinite, colors)) or min(self.std) <= 0:
            raise InvalidRequest(
                f"mean and std must be three finite numbers each, std above 0, got {self.mean} and {self.std}."
            )

    @classmethod
    def from_pretrained_cfg(cls, config: Mapping[str, Any]) -> Self:
        """Read timm's fields; a missing field has timm's default, which is also the default of this class.

        Raises:
            WeightsMismatch: a field has an invalid value.
        """
        named = config.get("interpolation")
        try:
            size = tuple(map(int, config.get("input_size", (3, cls.input_size, cls.input_size))))
            if len(size) != 3 or size[0] != 3 or size[1] != size[2]:
                raise ValueError(f"input_size {list(size)} is not a square (3, S, S)")
            return cls(
                input_size=size[-1],
                crop_pct=float(cls.crop_pct if config.get("crop_pct") is None else config["crop_pct"]),
                mean=tuple(map(float, config.get("mean") or cls.mean)),
                std=tuple(map(float, config.get("std") or cls.std)),
                interpolation=cls.interpolation if named in (None, "", "random") else str(named),
                crop_mode=str(config.get("crop_mode") or cls.crop_mode),
            )
        except (TypeError, ValueError, OverflowError) as error:
            reason = str(error).partition(":")[0].rstrip(".")
            raise WeightsMismatch(
                f"The preprocessing of this model is not supported ({reason}); correct pretrained_cfg in its "
                "config.json, or choose another model."
            ) from error


class Transform(Protocol):
    """What an Encoder needs of a transform: `EvalTransform`, or a function of the user (`encoder.wrapped`)."""

    preprocessing: Preprocessing

    def read(self, source: Source) -> np.ndarray:
        """Return one crop (S, S, 3) of any source that `decode_image` reads."""
        ...

    def read_each(self, sources: Sequence[Source]) -> list[np.ndarray | Exception]:
        """Return for each source what `read` returns, or the exception that it raises."""
        ...

    def crop(self, image: Image.Image) -> np.ndarray:
        """Return one crop (S, S, 3) of an upright RGB image."""
        ...

    def resized(self, image: Image.Image, size: tuple[int, int]) -> np.ndarray:
        """Return (h, w, 3) uint8 of an upright RGB image, resized to a width and height."""
        ...

    def normalize(self, crops: np.ndarray | Tensor) -> Tensor:
        """Return the network's input (N, 3, S, S) float32 from crops."""
        ...

    def __call__(self, image: Source) -> Tensor:
        """Return (3, S, S) float32 of any source that `decode_image` reads."""
        ...


class EvalTransform:
    """timm's evaluation transform: resize, center crop, normalize.

    The part that the crop keeps is cut out before the resize. Otherwise an image of 1 x 3000 pixels would become one
    of 196 megapixels on the way.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def read(self, source: Source) -> np.ndarray:
        """Return (S, S, 3) uint8 of any source that `decode_image` reads; a large JPEG is not decoded in full."""
        return run_isolated(_crop_of, source, self.preprocessing, take=np.array)

    def crop(self, image: Image.Image) -> np.ndarray:
        """Return (S, S, 3) uint8 of an upright RGB image."""
        return self._crop(DecodedImage(image, image.size))

    def resized(self, image: Image.Image, size: tuple[int, int]) -> np.ndarray:
        """Return (h, w, 3) uint8 of an upright RGB image, resized to a width and height without a crop."""
        resample = _RESAMPLING[self.preprocessing.interpolation]
        return np.array(image if image.size == size else image.resize(size, resample))

    def read_each(self, sources: Sequence[Source]) -> list[np.ndarray | Exception]:
        """Return for each source what `read` returns, or the exception that it raises."""
        return run_isolated_each(_crop_of, sources, self.preprocessing, take=np.array)

    def decoded(self, source: Source) -> np.ndarray:
        """Return what `read` does, decoded in this process."""
        return self._crop(decode_scaled(source, self._side))

    @property
    def _side(self) -> int:
        """The length to which a side of an image is resized, in pixels."""
        return math.floor(self.preprocessing.input_size / self.preprocessing.crop_pct)

    def _crop(self, decoded: DecodedImage) -> np.ndarray:
        size, (width, height) = self.preprocessing.input_size, decoded.size
        wide, high = self._resized_to(width, height)
        kept = min(size, wide), min(size, high)
        left, top = round((wide - kept[0]) / 2), round((high - kept[1]) / 2)
        across, down = width / wide / decoded.scale, height / high / decoded.scale  # image pixels per resized pixel
        x, y = decoded.corner
        box = (x + left * across, y + top * down, x + (left + kept[0]) * across, y + (top + kept[1]) * down)
        crop = np.empty((size, size, 3), np.uint8)
        crop[:] = [round(255 * value) for value in self.preprocessing.mean]
        column, row = (size - kept[0]) // 2, (size - kept[1]) // 2
        crop[row : row + kept[1], column : column + kept[0]] = np.asarray(self._resize(decoded.image, box, kept))
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

    def _resize(self, image: Image.Image, box: tuple[float, float, float, float], size: tuple[int, int]) -> Image.Image:
        resample = _RESAMPLING[self.preprocessing.interpolation]
        if box[0] >= 0 and box[1] >= 0 and box[2] <= image.width and box[3] <= image.height:
            return image.resize(size, resample, box=box)
        # with crop_pct 1, rounding can exceed the border by less than a pixel
        inside = (max(0.0, box[0]), max(0.0, box[1]), min(image.width, box[2]), min(image.height, box[3]))
        return image.resize(size, resample, box=inside)

    def normalize(self, crops: np.ndarray | Tensor) -> Tensor:
        """Return (N, 3, S, S) float32 from uint8 (N, S, S, 3), which stays channels last in memory, or (N, 3, S, S)."""
        import torch

        pixels = torch.as_tensor(crops)
        if pixels.shape[-1] == 3:
            pixels = pixels.permute(0, 3, 1, 2)  # a view: the memory layout stays
        mean, std = (
            torch.tensor(values, device=pixels.device).view(1, 3, 1, 1)
            for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        return pixels.float().div_(255).sub_(mean).div_(std)

    def __call__(self, image: Source) -> Tensor:
        """Return (3, S, S) float32 of any source that `decode_image` reads."""
        return self.normalize(self.read(image)[None])[0]


def _crop_of(source: Source, preprocessing: Preprocessing) -> tuple[np.ndarray]:
    return (EvalTransform(preprocessing).decoded(source),)
