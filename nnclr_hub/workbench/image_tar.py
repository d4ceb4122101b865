"""Tar archives of images, read without unpacking: list the members, and read the bytes of one.

    for name, size, mtime, offset in members(Path("more.tar")):
        TarMember("more.tar", changed, offset, size).read()

Archives must allow random access: uncompressed, one archive per file, and complete.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from nnclr_hub.encoder.image_folder import IMAGE_SUFFIXES
from nnclr_hub.errors import InvalidRequest

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
CHUNK = 1 << 20
MOST_HEADER = 1 << 20  # bytes of a long name, or of other attributes of a member
HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


@dataclass(frozen=True, slots=True)
class TarMember:
    """An image in an archive, whose bytes are read on demand.

    archive: its path.
    changed: modification time of the archive when it was listed.
    offset, size: of the bytes.
    """

    archive: str
    changed: float
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the bytes of the image.

        Raises:
            InvalidRequest: the archive has changed since it was listed.
            OSError: it cannot be read.
        """
        with open(self.archive, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_mtime != self.changed:
                raise InvalidRequest(f"{self.archive} changed while its images were read; restart the run.")
            return os.pread(file.fileno(), self.size, self.offset)


class _BoundedHeader(tarfile.TarInfo):
    """A header whose size is checked before tarfile reads that many bytes at once."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in HEADERS and header.size > MOST_HEADER):
            raise tarfile.ReadError(f"a header declares {header.size} bytes; the limit is {MOST_HEADER}")
        return header


def members(archive: Path, name: str | None = None) -> Iterator[tuple[str, int, float, int]]:
    """Yield (name, size, mtime, offset) of each image, by suffix, in the order of the archive, which reads fastest.

    Names are normalized to the form a/b.jpg. Hidden files and folders, and links, are left out.

    Args:
        archive: its path.
        name: for error messages; None: the path.

    Raises:
        InvalidRequest: it is compressed, truncated, has data after its end, or contains a sparse image or a header
            that is too large.
    """
    name = name or str(archive)
    if archive.name.lower().endswith(COMPRESSED):
        raise InvalidRequest(f"{name} is compressed and does not allow random access; decompress it first.")
    try:
        with tarfile.open(archive, "r:", tarinfo=_BoundedHeader) as tar:
            for member in tar:
                if member.size < 0:  # from an extended header; tarfile would go back and never end
                    raise tarfile.ReadError(f"a header declares {member.size} bytes")
                parts = [part for part in PurePosixPath(member.name).parts if part not in ("/", "..")]
                hidden = any(part.startswith(".") for part in parts)
                if member.isreg() and not hidden and Path(member.name).suffix.lower() in IMAGE_SUFFIXES:
                    if member.issparse():
                        raise InvalidRequest(
                            f"{name} contains the sparse file {member.name}; pack it without --sparse."
                        )
                    yield "/".join(parts), member.size, float(member.mtime), member.offset_data
                tar.members.clear()  # type: ignore[attr-defined] - otherwise all members stay in memory
            end = tar.offset
    except (tarfile.TarError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not a complete tar file ({error}); create it again, or unpack it.") from error
    _check_end(archive, end, name)


def _check_end(archive: Path, end: int, name: str) -> None:
    """Check that only zeros follow the last member; tarfile stops silently at an invalid header."""
    with archive.open("rb") as file:
        file.seek(end)
        rest = file.read(CHUNK)
        if len(rest) < tarfile.BLOCKSIZE:
            raise InvalidRequest(f"{name} is truncated; create it again, or unpack it.")
        while rest:
            if rest.strip(b"\0"):
                raise InvalidRequest(
                    f"{name} has data after its end, so it is damaged or concatenated; create it again, or unpack it."
                )
            rest = file.read(CHUNK)
