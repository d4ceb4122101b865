"""Bytes to pixels, safely, and pixels to what an encoder takes.

Whatever a stranger sends must end as a picture or as one ImageError, quickly and in little memory:
the format is on a list, the size is checked before anything is decoded, and a picture that breaks off
is refused.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import torch
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError
from torch import Tensor

from nnclr_hub.encoder.quiet import pillow_kept_quiet
from nnclr_hub.errors import ImageError, ImageTooLarge, InvalidRequest, UnsupportedImage

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "AVIF", "PPM", "ICO", "QOI", "JPEG2000")
FORMATS_IN_WORDS = "JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF, PPM, ICO, QOI or JPEG 2000"
MAX_PIXELS = 40_000_000
MAX_CHANNELS = 4
OVERSAMPLED = 2  # source pixels a pixel of the resized picture that a scaled JPEG must keep
_SAMPLES_PER_PIXEL = 277  # a tag of TIFF
_JPEG2000_SIZES = b"\xff\x4f\xff\x51"  # the two markers before its sizes
_RESAMPLING = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}

Source = Path | str | bytes | Image.Image


def decode_image(source: Source, *, short: int | None = None) -> Image.Image:
    """Reads one picture: RGB, upright by its EXIF orientation, the first frame of several.

    16-bit channels are scaled to 8, not clipped; grey becomes RGB; transparency goes over white.

    Args:
        source: a path, the file's bytes, or a PIL image.
        short: side, in pixels, to which the short side will be brought; a large JPEG is then scaled down while it
            is decoded, to no less than twice that, which costs a fraction and keeps 45 dB and more of the crop.
            None: all its pixels.

    Raises:
        UnsupportedImage: a format or number of channels that we do not read.
        ImageTooLarge: above 40 megapixels.
        ImageError: no picture, or a broken one.
        InvalidRequest: `source` is none of these.
    """
    if isinstance(source, Image.Image):
        with _image_errors():
            return _upright_rgb(source)
    with _opened(source) as file, _image_errors():
        try:
            image = Image.open(file, formats=_readable_formats())
        except UnidentifiedImageError:
            _check_channels(_channels_of_unidentified(file))
            raise
        with image:
            _check_size(image)
            _check_channels(getattr(image, "tag_v2", {}).get(_SAMPLES_PER_PIXEL, 1))
            if short is not None:
                _scale_while_decoding(image, short)
            image.load()
            return _upright_rgb(image)


def _scale_while_decoding(image: Image.Image, short: int) -> None:
    """By 2, 4 or 8 for a JPEG, nothing for the rest; the antialiased resize that follows wants twice its size."""
    scale = min(image.size) // (OVERSAMPLED * short)
    if scale > 1:
        image.draft(None, (image.width // scale, image.height // scale))


def _opened(source: Path | str | bytes) -> BinaryIO:
    """The file, not yet read: a film among the pictures must not be taken into memory."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if not isinstance(source, str | Path):
        raise InvalidRequest(
            f"A {type(source).__name__} is no image: give a path, the file's bytes, a PIL image, or an (H, W, 3) "
            "uint8 array."
        )
    try:
        if Path(source).exists() and not Path(source).is_file():
            raise ImageError("The file cannot be opened (it is a folder or a device).")
        return Path(source).open("rb")
    except OSError as error:
        raise ImageError(f"The file cannot be opened ({error.strerror}).") from error
    except ValueError as error:
        raise ImageError("The file cannot be opened (its name is not one that a file can have).") from error


def _channels_of_unidentified(file: BinaryIO) -> int:
    """Channels that a TIFF or JPEG 2000 header tells of where Pillow only says that it knows no such picture."""
    file.seek(0)
    header = file.read(8)
    try:
        if header[:4] in (b"II*\0", b"MM\0*"):
            tags = TiffImagePlugin.ImageFileDirectory_v2(header)
            file.seek(tags.next)
            tags.load(file)
            return int(tags.get(_SAMPLES_PER_PIXEL, 1))
    except Exception:  # noqa: BLE001 - the header is broken as well: not to be identified, then
        return 1
    start = (header + file.read(4096)).partition(_JPEG2000_SIZES)[2]
    return int.from_bytes(start[36:38], "big")


def _check_channels(channels: int) -> None:
    if channels > MAX_CHANNELS:
        raise UnsupportedImage(f"The picture has {channels} channels: give grey, RGB, RGBA or CMYK.")


@cache
def _readable_formats() -> tuple[str, ...]:
    """Those of the formats that this Pillow was built with; naming another makes it fail on every file."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _image_errors() -> Iterator[None]:
    """Whatever Pillow raises in the block becomes an ImageError."""
    try:
        with pillow_kept_quiet():
            yield
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise UnsupportedImage(f"This is not a picture in a format we read: {FORMATS_IN_WORDS}.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLarge(_too_large("The picture")) from error
    except MemoryError as error:
        raise ImageTooLarge("The picture needs more memory to decode than there is.") from error
    except Exception as error:  # decoders raise whatever struct, zlib and they themselves do
        raise ImageError(f"The picture is broken or cut off ({_reason(error)}).") from error


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise ImageTooLarge(_too_large(f"The picture of {image.width} x {image.height} pixels"))


def _too_large(what: str) -> str:
    return f"{what} is above the limit of {MAX_PIXELS // 10**6} megapixels: send a smaller copy."


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) < 120 else type(error).__name__


def _upright_rgb(image: Image.Image) -> Image.Image:
    _check_size(image)
    if min(image.size) < 1:
        raise ImageError("The picture has no pixels.")
    _check_channels(len(image.getbands()))
    try:
        # the orientation is read before any conversion, which drops the metadata
        upright = ImageOps.exif_transpose(image)
    except Exception:  # noqa: BLE001 - metadata so broken that no orientation can be read: as it lies
        upright = image
    return _to_rgb(upright)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image if type(image) is Image.Image else image.copy()
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return _scaled_to_8_bits(image).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _scaled_to_8_bits(image: Image.Image) -> Image.Image:
    """High bit depths to 8 bits: by 257 for 16-bit integers, by the range itself for floats."""
    values = np.asarray(image, dtype=np.float64)
    if image.mode == "F":
        values = np.nan_to_num(values)
        low, high = values.min(), values.max()
        top = 255.0 if high > 1 else 1.0
        scaled = (values - low) / (high - low) * 255 if low < 0 or high > 255 else values / top * 255
    else:
        # mode "I" holds 16-bit files too; what goes beyond is brought down by its own maximum
        scaled = values / max(65535.0, values.max(initial=0)) * 255
    return Image.fromarray(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))


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
        if self.input_size < 1 or not 0 < self.crop_pct <= 1:
            raise InvalidRequest(
                f"An input of {self.input_size} pixels cut from a share of {self.crop_pct} is not possible: "
                "input_size must be positive and crop_pct in (0, 1]."
            )

    @classmethod
    def from_pretrained_cfg(cls, config: Mapping[str, Any]) -> Self:
        """Reads timm's names; what is left out has timm's defaults, which are those of this class."""
        interpolation = str(config.get("interpolation"))
        return cls(
            input_size=int(config.get("input_size", (cls.input_size,))[-1]),
            crop_pct=float(config.get("crop_pct") or cls.crop_pct),
            mean=tuple(map(float, config.get("mean") or cls.mean)),
            std=tuple(map(float, config.get("std") or cls.std)),
            interpolation=interpolation if interpolation in _RESAMPLING else cls.interpolation,
        )


class EvalTransform:
    """Resize of the short side, centre crop, normalisation: what timm's evaluation transform does.

    The part that the crop keeps is cut out before the resize, so that a picture of 1 x 3000 pixels
    never becomes one of 196 megapixels on the way.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    @property
    def short(self) -> int:
        """To what the short side of a picture is brought, in pixels."""
        return math.floor(self.preprocessing.input_size / self.preprocessing.crop_pct)

    def crop(self, image: Image.Image) -> np.ndarray:
        """(S, S, 3) uint8 of an upright RGB picture."""
        size, short = self.preprocessing.input_size, self.short
        width, height = image.size
        wide, high = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
        left, top = round((wide - size) / 2), round((high - size) / 2)
        across, down = width / wide, height / high  # source pixels a resized pixel
        box = (left * across, top * down, (left + size) * across, (top + size) * down)
        return np.array(self._resize(image, box, size))  # a copy: torch refuses the read-only original

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
        return self.normalise(self.crop(decode_image(image, short=self.short))[None])[0]
