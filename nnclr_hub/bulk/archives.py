"""Tar archives of images, read where they lie: what is in them, and the bytes of one.

    for name, size, mtime, offset in members(Path("more.tar")):
        TarMember("more.tar", changed, offset, size).read()

Only what can be read in any order: no compression, one archive a file, whole to its end.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES
from nnclr_hub.errors import InvalidRequest

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class TarMember:
    """An image in an archive, whose bytes are read when they are needed.

    archive: its path.
    changed: when the archive was changed last, as it was listed.
    offset, size: where the bytes are.
    """

    archive: str
    changed: float
    offset: int
    size: int

    def read(self) -> bytes:
        """The image's file.

        Raises:
            InvalidRequest: the archive has changed since it was listed.
            OSError: it cannot be read.
        """
        with open(self.archive, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_mtime != self.changed:
                raise InvalidRequest(f"{self.archive} has changed while its images were read: begin anew.")
            return os.pread(file.fileno(), self.size, self.offset)


def members(archive: Path) -> Iterator[tuple[str, int, float, int]]:
    """(name, size, mtime, offset) of each image, by suffix, in the archive's own order, the fast one to read.

    Names are brought to the form a/b.jpg; hidden files and folders are left out, and links.

    Raises:
        InvalidRequest: it is compressed, breaks off, goes on behind its end, or holds an image in parts.
    """
    if archive.name.lower().endswith(COMPRESSED):
        raise InvalidRequest(f"{archive} is compressed, so its images can only be read in turn: unpack it first.")
    try:
        with tarfile.open(archive, "r:") as tar:
            for member in tar:
                parts = [part for part in PurePosixPath(member.name).parts if part not in ("/", "..")]
                if member.isreg() and not _hidden(parts) and Path(member.name).suffix.lower() in IMAGE_SUFFIXES:
                    if member.issparse():
                        raise InvalidRequest(f"{archive} holds {member.name} in parts: pack it without --sparse.")
                    yield "/".join(parts), member.size, float(member.mtime), member.offset_data
                tar.members.clear()  # type: ignore[attr-defined] - else each stays, with all its fields
            end = tar.offset
    except tarfile.TarError as error:
        raise InvalidRequest(f"{archive} is no whole tar file ({error}): make it anew, or unpack it.") from error
    _check_end(archive, end)


def _hidden(parts: list[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _check_end(archive: Path, end: int) -> None:
    """tarfile stops without a word at what is no header; after the last member there are zeros, and nothing else."""
    with archive.open("rb") as file:
        file.seek(end)
        rest = file.read(CHUNK)
        if len(rest) < tarfile.BLOCKSIZE:
            raise InvalidRequest(f"{archive} is no whole tar file (it breaks off): make it anew, or unpack it.")
        while rest:
            if rest.strip(b"\0"):
                raise InvalidRequest(
                    f"{archive} goes on behind its end (damaged, or several put together): make it anew, or unpack it."
                )
            rest = file.read(CHUNK)
