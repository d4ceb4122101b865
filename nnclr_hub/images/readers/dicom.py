"""DICOM: radiographs, CT and MR slices, with the window that the file names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from nnclr_hub.errors import UnsupportedImage
from nnclr_hub.images.readers.stack import Box, ImageStack, load

_PREAMBLE, _MAGIC = 128, b"DICM"


class DicomReader:
    """Reads the frames of a DICOM file in its own units, such as Hounsfield units."""

    suffixes = (".dcm", ".dicom")

    def takes(self, start: bytes, name: str) -> bool:
        """Return whether the file has DICOM's mark after its preamble."""
        return start[_PREAMBLE : _PREAMBLE + len(_MAGIC)] == _MAGIC

    @contextmanager
    def open(self, file: BinaryIO) -> Iterator[ImageStack]:
        """Open a file."""
        pydicom, pixels = load("pydicom"), load("pydicom.pixels")
        about = pydicom.dcmread(file, stop_before_pixels=True)
        if "Rows" not in about or "Columns" not in about:
            raise UnsupportedImage("The DICOM file contains no image, such as a report or a directory.")
        samples = int(about.get("SamplesPerPixel", 1))
        kind = str(about.get("PhotometricInterpretation", ""))
        palette, inverted = kind == "PALETTE COLOR", kind == "MONOCHROME1"  # whose high values are dark
        color = samples > 1 or palette
        window = None if color else _window(about)
        table = not color and window is None and ("VOILUTSequence" in about or "WindowWidth" in about)

        def read(page: int, channels: Sequence[int], box: Box | None) -> np.ndarray:
            file.seek(0)
            values = pixels.pixel_array(file, index=page)
            if palette:
                values = pixels.apply_color_lut(values, about)
            elif not color:
                values = pixels.apply_modality_lut(values, about)
                values = pixels.apply_voi_lut(values, about) if table else values
            values = values.reshape(*values.shape[:2], -1)[:, :, list(channels)]
            left, top, right, bottom = box or (0, 0, values.shape[1], values.shape[0])
            values = values[top:bottom, left:right]
            return -values.astype(np.float64) if inverted else values

        if inverted and window is not None:
            window = (-window[1], -window[0])
        dtype = np.dtype(f"u{int(about.get('BitsAllocated', 16)) // 8 or 1}" if color else np.float64)
        frames = int(about.get("NumberOfFrames", 1) or 1)
        size = int(about.Columns), int(about.Rows)
        yield ImageStack(frames, 3 if color else 1, size, dtype, read, window)


def _window(about: Any) -> tuple[float, float] | None:
    """Return the first linear window in the units of the file: the values that become black and white."""
    if "WindowWidth" not in about or "WindowCenter" not in about or "VOILUTSequence" in about:
        return None
    center, width = (np.ravel(about[name].value)[:1].astype(float) for name in ("WindowCenter", "WindowWidth"))
    if not len(center) or not len(width) or width[0] <= 0:
        return None
    shape = str(about.get("VOILUTFunction", "LINEAR") or "LINEAR")
    if shape == "LINEAR_EXACT" or (shape == "LINEAR" and width[0] <= 1):
        return float(center[0] - width[0] / 2), float(center[0] + width[0] / 2)
    if shape != "LINEAR":
        return None  # a sigmoid: applied to the values themselves
    # PS3.3 C.11.2.1.2.1
    return float(center[0] - 0.5 - (width[0] - 1) / 2), float(center[0] - 0.5 + (width[0] - 1) / 2)
