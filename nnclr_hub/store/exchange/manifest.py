"""The manifest of an exported collection: what its folder holds, and whether it still does.

collection.json             format and version, name, specification, counts, size and SHA-256 of every other file
items-00000.parquet         id, metadata (JSON text), thumbnail (JPEG bytes or null), in ascending order of the ids
vectors-00000.safetensors   one tensor "vectors" (n, D), float32 or float16, in the same order
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from nnclr_hub.errors import InvalidRequest, StoreError, StoreTooNew
from nnclr_hub.store.durable import fsync_folder
from nnclr_hub.store.spec import CollectionSpec

MANIFEST = "collection.json"
FORMAT = "nnclr_hub collection"
VERSION = 1
MAX_MANIFEST = 16 * 1024 * 1024
CHUNK = 1024 * 1024
# never a path that leads out of the folder
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,100}")
_SHA256 = re.compile(r"[0-9a-f]{64}")

Bytes = Callable[[int], None]


@dataclass(frozen=True)
class ExportedFile:
    """A file of the export: its name in the folder, bytes, and SHA-256 in hex."""

    file: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not _FILE.fullmatch(self.file) or not _SHA256.fullmatch(self.sha256) or not _is_count(self.size):
            raise ValueError(f"{self.file!r:.80} has no name, size and sha256 of a file")

    @classmethod
    def of(cls, path: Path) -> Self:
        """Reads the file."""
        return cls(path.name, path.stat().st_size, _sha256(path))

    def check(self, folder: Path, advance: Bytes) -> None:
        """Refuses a file that is not the one that was exported.

        Raises:
            StoreError: it is missing, shorter or longer, or has other bytes.
        """
        path = folder / self.file
        way_out = "copy the export again from where it was made"
        try:
            size = path.stat().st_size
            if size != self.size:
                raise StoreError(f"{path} has {size} bytes and was exported with {self.size}: {way_out}.")
            if _sha256(path, advance) != self.sha256:
                raise StoreError(f"{path} is damaged, its SHA-256 is not that of {MANIFEST}: {way_out}.")
        except OSError as error:
            raise StoreError(f"{path} of the export cannot be read ({error.strerror}): {way_out}.") from error


@dataclass(frozen=True)
class Shard:
    """A part of the items: how many, and the two files that hold them."""

    count: int
    items: ExportedFile
    vectors: ExportedFile

    def __post_init__(self) -> None:
        if not _is_count(self.count) or self.count == 0:
            raise ValueError(f"a shard of {self.count!r:.80} items")

    @property
    def files(self) -> tuple[ExportedFile, ExportedFile]:
        return self.items, self.vectors


@dataclass(frozen=True)
class Manifest:
    """What an export holds.

    name: the collection's when it was exported.
    items: how many.
    thumbnails: whether they were exported as well.
    """

    name: str
    spec: CollectionSpec
    items: int
    thumbnails: bool
    shards: tuple[Shard, ...]

    @property
    def size(self) -> int:
        """Bytes of the files that it lists."""
        return sum(file.size for shard in self.shards for file in shard.files)

    def write(self, folder: Path) -> None:
        """Writes collection.json, which makes the export whole; it is on disk when this returns."""
        text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)
        temporary = folder / f"{MANIFEST}.new"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(folder / MANIFEST)
        fsync_folder(folder)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads collection.json, not yet the other files.

        Raises:
            InvalidRequest: the folder holds no export.
            StoreTooNew: one of a later version.
            StoreError: its manifest makes no sense.
        """
        path = folder / MANIFEST
        try:
            if path.stat().st_size > MAX_MANIFEST:
                raise StoreError(f"{path} is larger than {MAX_MANIFEST} bytes, which no manifest is: give an export.")
            given = json.loads(path.read_bytes())
        except OSError as error:
            raise InvalidRequest(
                f"{folder} holds no exported collection ({path.name}: {error.strerror}): give a folder that "
                "`nnclr store export` wrote."
            ) from error
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path} is not JSON ({str(error)[:80]}): export the collection again.") from error
        if not isinstance(given, dict) or given.get("format") != FORMAT:
            raise InvalidRequest(f"{path} is no manifest of an exported collection: it lacks the format {FORMAT!r}.")
        version = given.get("version")
        if isinstance(version, int) and version > VERSION:
            raise StoreTooNew(f"{folder} was exported by a later version of nnclr_hub ({version}): install that one.")
        try:
            if version != VERSION:
                raise ValueError(f"version {version!r:.80}")
            return cls._parsed(given)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{path} makes no sense ({type(error).__name__}: {str(error)[:150]}): export the collection again."
            ) from error

    @classmethod
    def _parsed(cls, given: dict[str, Any]) -> Self:
        spec = dict(given["spec"])
        if not isinstance(spec.get("indexed"), list) or not all(isinstance(key, str) for key in spec["indexed"]):
            raise ValueError("indexed is no list of keys")
        shards = tuple(
            Shard(one["count"], ExportedFile(**one["items"]), ExportedFile(**one["vectors"])) for one in given["shards"]
        )
        if given["items"] != sum(shard.count for shard in shards):
            raise ValueError("its items are not the sum of its shards")
        name, thumbnails = given["name"], given["thumbnails"]
        if not isinstance(name, str) or not isinstance(thumbnails, bool):
            raise ValueError("name and thumbnails")
        return cls(name, CollectionSpec(**spec), given["items"], thumbnails, shards)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _sha256(path: Path, advance: Bytes = lambda count: None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()
