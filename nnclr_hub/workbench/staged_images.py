"""The images among staged files, including those in zips; each is read only when it is needed.

with staged_images(ticket, most_bytes=20_000_000) as (images, left_out):
    images[0].name, images[0].label     # "cat/01.jpg", "cat"
    data = images[0].read()
    left_out                                # [("inner.zip", "It is a zip within the zip: ...")]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from nnclr_hub.encoder.image_folder import label_of
from nnclr_hub.errors import ImageError
from nnclr_hub.workbench.image_zip import SUFFIX, ImageZip
from nnclr_hub.workbench.staging import staged


@dataclass(frozen=True)
class StagedImage:
    """An image among staged files.

    name: its path below the folder that the user chose, or within its zip.
    label: the folder that contains it; "" for none.
    read: returns its bytes; raises ImageError if it cannot be read.
    """

    name: str
    label: str
    read: Callable[[], bytes]


@contextmanager
def staged_images(ticket: str, most_bytes: int) -> Iterator[tuple[list[StagedImage], list[tuple[str, str]]]]:
    """Open the images of a ticket; also yields (name, reason) of entries that were left out of a zip.

    Raises:
        InvalidRequest: if the ticket has no files, or a zip cannot be accepted.
    """
    images: list[StagedImage] = []
    left_out: list[tuple[str, str]] = []
    with ExitStack() as opened:
        for file in staged(ticket):
            if not file.name.lower().endswith(SUFFIX):
                read = partial(_read, file.path, most_bytes)
                images.append(StagedImage(file.name, label_of(Path(file.name), Path()) or "", read))
                continue
            zip = opened.enter_context(ImageZip(file.path, file.name, most_bytes))
            left_out += zip.left_out
            root = root_of(zip.names)
            for name in zip.names:
                images.append(StagedImage(name, label_of(Path(name), root) or "", partial(zip.read, name)))
        yield images, left_out


def root_of(names: Sequence[str]) -> Path:
    """Return the top folder if all images are in one: it is what was packed, not a label."""
    tops = {"/".join(PurePosixPath(name).parts[:-1][:1]) for name in names}
    return Path(tops.pop()) if len(tops) == 1 else Path()


def _read(path: Path, most_bytes: int) -> bytes:
    if path.stat().st_size > most_bytes:
        raise ImageError(f"The image has more than {most_bytes / 1e6:,.0f} MB; make it smaller.")
    return path.read_bytes()
