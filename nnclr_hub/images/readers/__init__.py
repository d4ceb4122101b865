"""Readers of the image formats that Pillow does not read, or reads only in part.

A reader is an object with the attributes of `ImageReader`. Packages add readers by an entry point:

    [project.entry-points."nnclr_hub.readers"]
    mrc = "my_package:reader"

Decoding processes import this module, so it must not import torch. Nothing is decoded before the size is checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import BinaryIO, Protocol

from nnclr_hub.errors import UnsupportedImage, missing_package
from nnclr_hub.images.readers.stack import ImageStack

log = logging.getLogger(__name__)

GROUP = "nnclr_hub.readers"
START = 4096  # bytes of a file that readers see before they open it


class ImageReader(Protocol):
    """Opens the files of one format.

    suffixes: in lower case with the dot; files with other names are not listed in a folder.
    """

    @property
    def suffixes(self) -> tuple[str, ...]: ...

    def takes(self, start: bytes, name: str) -> bool:
        """Return whether it reads a file, by its first 4096 bytes and its path; "" for bytes without a file."""
        ...

    def open(self, file: BinaryIO) -> AbstractContextManager[ImageStack]:
        """Read the header of a file. An ImportError of a package of an extra names the extra.

        Raises:
            ImageError: the file cannot be read.
        """
        ...


@cache
def readers() -> tuple[ImageReader, ...]:
    """Return all readers: those of other packages first, then those of this library."""
    from nnclr_hub.images.readers.dicom import DicomReader
    from nnclr_hub.images.readers.microscopes import CziReader, Nd2Reader
    from nnclr_hub.images.readers.raw import RawReader
    from nnclr_hub.images.readers.tiff import TiffReader

    plug_ins: list[ImageReader] = []
    for one in entry_points(group=GROUP):
        try:
            plug_ins.append(one.load())
        except Exception as error:  # noqa: BLE001 - a broken package must not stop the others
            log.warning("the reader %s is not used (%s: %s)", one.name, type(error).__name__, error)
    return (*plug_ins, DicomReader(), CziReader(), Nd2Reader(), RawReader(), TiffReader())


def find_reader(file: BinaryIO, name: str) -> ImageReader | None:
    """Return the reader of a file at its start; None: Pillow reads it, or reports what it is."""
    start = file.read(START)
    file.seek(0)
    return next((one for one in readers() if one.takes(start, name)), None)


@contextmanager
def opened(reader: ImageReader, file: BinaryIO) -> Iterator[ImageStack]:
    """Open a file with a reader.

    Raises:
        UnsupportedImage: the reader's package is not installed; the message names the extra.
    """
    try:
        with reader.open(file) as stack:
            yield stack
    except ImportError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        raise UnsupportedImage(str(missing)) from error
