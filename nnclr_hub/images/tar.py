"""Tar archives of images, read without unpacking: list the members, and read the bytes of one.

    for name, size, mtime, offset in members(Path("more.tar")):
        TarMember("more.tar", changed, offset, size).read()
    for image, key, texts in samples(file, "webdataset-000.tar"):
        ...                                     # also the key of WebDataset, and its captions and labels

Archives must allow random access: uncompressed, one archive per file, and complete.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.folder import count_system_files, is_hidden, is_image, warn_once

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
LINKS, REPEATED, UNMATCHED = "links", "repeated", "texts without an image"  # counted like suffixes
CLS = "cls"  # the kind of text that is a label
TEXTS = ("json", CLS, "txt")  # of a sample of WebDataset
MOST_TEXT = 1 << 16  # bytes of one; longer ones are left out
MOST_HEADER = 1 << 20  # bytes of a long name, or of other attributes of a member
CHUNK = 1 << 20
Member = tuple[str, int, float, int]  # name, size, mtime, offset of the bytes
Text = tuple[str, int, int]  # kind, size, offset of the bytes
_DRIVE = re.compile(r"^[A-Za-z]:(?=/)")


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
        """Return the bytes of the image; raise InvalidRequest if the archive has changed since it was listed."""
        with open(self.archive, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_mtime != self.changed:
                raise InvalidRequest(f"{self.archive} changed while its images were read; restart the run.")
            return os.pread(file.fileno(), self.size, self.offset)


def members(archive: Path, name: str | None = None, others: Counter[str] | None = None) -> Iterator[Member]:
    """Yield (name, size, mtime, offset) of each image, by suffix, in the order of the archive, which reads fastest.

    Args:
        name: for error messages; None: the path.
        others: counts the files that are not images, by suffix, and links.

    Raises:
        InvalidRequest: it is compressed, truncated, has data after its end, or contains a sparse image or a header
            that is too large.
    """
    others = Counter() if others is None else others
    with archive.open("rb") as file:
        for one in _files(file, name or str(archive), others):
            if is_image(one[0]):
                yield one
            else:
                others[PurePosixPath(one[0]).suffix.lower()] += 1


def samples(file: BinaryIO, name: str, others: Counter[str]) -> Iterator[tuple[Member, str, tuple[Text, ...]]]:
    """Yield each image of an archive with its key, and the texts of its sample, as WebDataset packs them.

    The files of a sample have the same name up to the first dot, which is the key, in any order. A text belongs to the
    only image of its sample, or to the only one that has its name without the suffix: `0.cls` to `0.jpg`, and not to
    the mask `0.seg.png`. The other images of a sample have neither key nor texts. Of equal names, the last one counts.
    A warning counts the images without a text in an archive of samples.

    Args:
        file: the archive, which can be read anywhere.
        name: for error messages.
        others: counts the files that are neither images nor texts of an image, by suffix, links, and texts whose image
            is missing.

    Returns:
        The image; the key; and (kind, size, offset) of each of the texts json, cls and txt.

    Raises:
        InvalidRequest: see `members`.
    """
    images: list[Member] = []
    texts: dict[str, dict[str, Text]] = defaultdict(dict)  # by the path without the suffix
    by_stem: dict[str, set[str]] = defaultdict(set)
    by_key: dict[str, set[str]] = defaultdict(set)
    for member in _files(file, name, others):
        path, size, _, offset = member
        suffix = PurePosixPath(path).suffix
        stem, kind = path.removesuffix(suffix), suffix[1:].lower()
        if is_image(path):
            images.append(member)
            by_stem[stem].add(path)
            by_key[_key(path)].add(path)
        elif kind in TEXTS and size <= MOST_TEXT:
            texts[stem][kind] = (kind, size, offset)
        else:
            others[suffix.lower()] += kind not in TEXTS
    texts_of: dict[str, dict[str, Text]] = {}
    unmatched = Counter[str]()
    for stem, found in texts.items():
        owners = by_stem.get(stem) or by_key.get(stem) or ()
        if len(owners) == 1:
            texts_of.setdefault(next(iter(owners)), {}).update(found)
        else:
            unmatched.update(found.keys())
    for image in images:
        path, key = image[0], _key(image[0])
        named = len(by_key[key]) == 1 or (os.path.splitext(path)[0] == key and len(by_stem[key]) == 1)
        yield image, key if named else "", tuple(texts_of.get(path, {}).values())
    for kind, count in unmatched.items():  # without samples, a .json or .txt may be any file
        others[UNMATCHED if texts_of or kind == CLS else f".{kind}"] += count
    if bare := [path for path, *_ in images if path not in texts_of] if texts_of or unmatched[CLS] else []:
        warn_once(f"{len(bare)} of the {len(images)} images in {name} have no text (cls, txt, json), such as {bare[0]}")


def _key(path: str) -> str:
    """Return the path of a sample: up to the first dot of the file name."""
    folder, slash, file = path.rpartition("/")
    return folder + slash + file.partition(".")[0]


def path_inside(name: str, others: Counter[str] | None = None) -> str:
    """Return the path of a member in the form a/b.jpg, "" if it is hidden or in a system folder.

    A drive, and steps that lead outside, are left out: nothing is unpacked, and `zip -r x.zip ../photos` writes them.

    Args:
        others: counts the files in system folders, by the name of the system folder.
    """
    path = "/".join(part for part in PurePosixPath(_DRIVE.sub("", name)).parts if part not in ("/", "//", ".."))
    if others is not None:
        count_system_files(path, others)
    return "" if is_hidden(path) else path


class _BoundedHeader(tarfile.TarInfo):
    """A header whose size is checked before tarfile reads that many bytes at once."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        # of a member that is no header itself, tarfile reads nothing
        if header.size < 0 or (header.type in b"LKxgX" and header.size > MOST_HEADER):
            raise tarfile.ReadError(f"a header declares {header.size} bytes; the limit is {MOST_HEADER}")
        return header


def _files(file: BinaryIO, name: str, others: Counter[str]) -> Iterator[Member]:
    """Yield the regular files of an archive that are not hidden, count its links, and check that it is complete."""
    if name.lower().endswith(COMPRESSED):
        raise InvalidRequest(f"{name} is compressed and does not allow random access; decompress it first.")
    try:
        with tarfile.open(fileobj=file, mode="r:", tarinfo=_BoundedHeader) as tar:
            for member in tar:
                if member.size < 0:  # from an extended header; tarfile would go back and never end
                    raise tarfile.ReadError(f"a header declares {member.size} bytes")
                path = path_inside(member.name, others if member.isreg() else None)
                if member.isreg() and path:
                    if member.issparse() and is_image(path):
                        raise InvalidRequest(
                            f"{name} contains the sparse file {member.name}; pack it without --sparse."
                        )
                    yield path, member.size, float(member.mtime), member.offset_data
                elif (member.issym() or member.islnk()) and path:
                    others[LINKS] += 1
                tar.members.clear()  # type: ignore[attr-defined] - otherwise all members stay in memory
            end = tar.offset
    except InvalidRequest:
        raise
    except (tarfile.TarError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        # tarfile does not expect every damage of a header, such as that of a sparse file
        raise InvalidRequest(f"{name} is not a complete tar file ({error}); create it again, or unpack it.") from error
    # tarfile stops silently at an invalid header; only zeros may follow the last member
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
