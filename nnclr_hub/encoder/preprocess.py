"""What is done to a picture before an encoder sees it: timm's evaluation transform."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nnclr_hub.encoder.decoding import Picture, Source, decode_scaled
from nnclr_hub.errors import InvalidRequest, WeightsMismatch

LARGEST_INPUT = 8192  # pixels; more is a slip of the pen, and would take the memory
_RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class Preprocessing:
    """What an encoder wants done to a picture; the fields of timm's pretrained_cfg that matter.

    input_size: side of the square input, in pixels.
    crop_pct: the short side is resized to input_size / crop_pct before the centre is cut out.
    mean, std: per channel, for pixels in [0, 1].
    interpolation: "bicubic" or "bilinear", antialiased.
    """

    input_size: int = 224
    crop_pct: float = 0.875
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        if self.interpolation not in _RESAMPLING:
            raise InvalidRequest(f"Interpolation {self.interpolation!r} is none of {', '.join(_RESAMPLING)}.")
        if not 1 <= self.input_size <= LARGEST_INPUT or not 0 < self.crop_pct <= 1:
            raise InvalidRequest(
                f"An input of {self.input_size} pixels cut from a share of {self.crop_pct} is not possible: "
                f"input_size must be from 1 to {LARGEST_INPUT} and crop_pct in (0, 1]."
            )
        colours = (*self.mean, *self.std)
        if len(self.mean) != 3 or len(self.std) != 3 or not all(map(math.isfinite, colours)) or min(self.std) <= 0:
            raise InvalidRequest(
                f"Pixels cannot be brought to mean {self.mean} and std {self.std}: three numbers each, std above 0."
            )

    @classmethod
    def from_pretrained_cfg(cls, config: Mapping[str, Any]) -> Self:
        """Reads timm's names; what is left out has timm's defaults, which are those of this class.

        Raises:
            WeightsMismatch: a field is not of its kind, or no preprocessing that we could do.
        """
        named = config.get("interpolation")
        try:
            size = tuple(map(int, config.get("input_size", (3, cls.input_size, cls.input_size))))
            if len(size) != 3 or size[1] != size[2]:
                raise ValueError(f"input_size {list(size)} is no square (3, S, S)")
            if config.get("crop_mode") not in (None, "", "center"):
                raise ValueError(f"crop_mode {config['crop_mode']!r}, where only 'center' is done")
            return cls(
                input_size=size[-1],
                crop_pct=float(cls.crop_pct if config.get("crop_pct") is None else config["crop_pct"]),
                mean=tuple(map(float, config.get("mean") or cls.mean)),
                std=tuple(map(float, config.get("std") or cls.std)),
                interpolation=cls.interpolation if named in (None, "", "random") else str(named),
            )
        except (TypeError, ValueError, OverflowError) as error:
            reason = str(error).partition(":")[0].rstrip(".")
            raise WeightsMismatch(
                f"This preprocessing cannot be done ({reason}): correct pretrained_cfg in the model's config.json, or "
                "take another model."
            ) from error


class EvalTransform:
    """Resize of the short side, centre crop, normalisation: what timm's evaluation transform does.

    The part that the crop keeps is cut out before the resize, so that a picture of 1 x 3000 pixels
    never becomes one of 196 megapixels on the way.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def read(self, source: Source) -> np.ndarray:
        """(S, S, 3) uint8 of anything that `decode_image` reads; a large JPEG is not decoded in full."""
        return self._cut(decode_scaled(source, self._short))

    def crop(self, image: Image.Image) -> np.ndarray:
        """(S, S, 3) uint8 of an upright RGB picture."""
        return self._cut(Picture(image, image.size))

    def resized(self, image: Image.Image, size: tuple[int, int]) -> np.ndarray:
        """(h, w, 3) uint8 of an upright RGB picture, uncropped, at another width and height than its own."""
        resample = _RESAMPLING[self.preprocessing.interpolation]
        return np.array(image if image.size == size else image.resize(size, resample))

    @property
    def _short(self) -> int:
        """To what the short side of a picture is brought, in pixels."""
        return math.floor(self.preprocessing.input_size / self.preprocessing.crop_pct)

    def _cut(self, picture: Picture) -> np.ndarray:
        size, short = self.preprocessing.input_size, self._short
        width, height = picture.size
        wide, high = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
        left, top = round((wide - size) / 2), round((high - size) / 2)
        across, down = width / wide / picture.scale, height / high / picture.scale  # image pixels a resized pixel
        x, y = picture.corner
        box = (x + left * across, y + top * down, x + (left + size) * across, y + (top + size) * down)
        return np.array(self._resize(picture.image, box, size))  # a copy: torch refuses the read-only original

    def _resize(self, image: Image.Image, box: tuple[float, float, float, float], size: int) -> Image.Image:
        resample = _RESAMPLING[self.preprocessing.interpolation]
        if box[0] >= 0 and box[1] >= 0 and box[2] <= image.width and box[3] <= image.height:
            return image.resize((size, size), resample, box=box)
        # crop_pct 1 can round past the border by less than a pixel
        inside = (max(0.0, box[0]), max(0.0, box[1]), min(image.width, box[2]), min(image.height, box[3]))
        return image.resize((size, size), resample, box=inside)

    def normalise(self, crops: np.ndarray | Tensor) -> Tensor:
        """(N, S, S, 3) or (N, 3, S, S) uint8 -> (N, 3, S, S) float32; the first stays channels last in memory."""
        pixels = torch.as_tensor(crops)
        if pixels.shape[-1] == 3:
            pixels = pixels.permute(0, 3, 1, 2)  # a view: memory stays as it was
        mean, std = (
            torch.tensor(values, device=pixels.device).view(1, 3, 1, 1)
            for values in (self.preprocessing.mean, self.preprocessing.std)
        )
        return pixels.float().div_(255).sub_(mean).div_(std)

    def __call__(self, image: Source) -> Tensor:
        """(3, S, S) float32 of anything that `decode_image` reads."""
        return self.normalise(self.read(image)[None])[0]
