"""ND2, the format of Nikon microscopes: channels, and pages of time, position and depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np

from nnclr_hub.images.readers.package_import import load
from nnclr_hub.images.readers.stack import Box, ImageStack


class Nd2Reader:
    """Reads one frame at a time, with all its channels."""

    suffixes = (".nd2",)

    def takes(self, start: bytes, name: str) -> bool:
        """Return whether the file has the mark of the present format; the old one is a JPEG 2000."""
        return start.startswith(b"\xda\xce\xbe\x0a")

    @contextmanager
    def open(self, file: BinaryIO) -> Iterator[ImageStack]:
        """Open a file."""
        with load("nd2").ND2File(file) as nd2:
            sizes = dict(nd2.sizes)
            colors, samples = sizes.get("C", 1), sizes.get("S", 1)
            height, width = sizes["Y"], sizes["X"]

            def read(page: int, channels: Sequence[int], box: Box | None) -> np.ndarray:
                frame = np.asarray(nd2.read_frame(page)).reshape(colors, height, width, samples)
                left, top, right, bottom = box or (0, 0, width, height)
                part = frame[:, top:bottom, left:right]
                return np.stack([part[one // samples, :, :, one % samples] for one in channels], axis=2)

            pages = int(np.prod([n for axis, n in sizes.items() if axis not in "CYXS"], dtype=int))
            yield ImageStack(pages, colors * samples, (width, height), nd2.dtype, read)
