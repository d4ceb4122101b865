"""The manifest of an exported collection, and the checks of its files.

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
from nnclr_hub.store.folder import fsync_folder
from nnclr_hub.store.spec import CollectionSpec

MANIFEST = "collection.json"
FORMAT = "nnclr_hub collection"
VERSION = 1
MAX_MANIFEST = 16 * 1024 * 1024
CHUNK = 1024 * 1024
# a plain name: a path must not leave the folder
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
            raise ValueError(f"invalid name, size or sha256 of the file {self.file!r:.80}")

    @classmethod
    def of(cls, path: Path) -> Self:
        """Describe a file that was just written."""
        return cls(path.name, path.stat().st_size, _sha256(path))

    def check(self, folder: Path, advance: Bytes) -> None:
        """Compare a file with its description.

        Raises:
            StoreError: it is missing or differs.
        """
        path = folder / self.file
        hint = "copy the export again from its source"
        try:
            size = path.stat().st_size
            if size != self.size:
                raise StoreError(f"{path} has {size} bytes, but was exported with {self.size}; {hint}.")
            if _sha256(path, advance) != self.sha256:
                raise StoreError(f"{path} is damaged: its SHA-256 differs from {MANIFEST}; {hint}.")
        except OSError as error:
            raise StoreError(f"{path} of the export cannot be read ({error.strerror}); {hint}.") from error


@dataclass(frozen=True)
class Shard:
    """A part of the items: their number, and their two files."""

    count: int
    items: ExportedFile
    vectors: ExportedFile

    def __post_init__(self) -> None:
        if not _is_count(self.count) or self.count == 0:
            raise ValueError(f"invalid shard of {self.count!r:.80} items")

    @property
    def files(self) -> tuple[ExportedFile, ExportedFile]:
        return self.items, self.vectors


@dataclass(frozen=True)
class Manifest:
    """The contents of an export.

    name: of the exported collection.
    items: their number.
    thumbnails: whether they were exported.
    """

    name: str
    spec: CollectionSpec
    items: int
    thumbnails: bool
    shards: tuple[Shard, ...]

    @property
    def size(self) -> int:
        """Total bytes of the listed files."""
        return sum(file.size for shard in self.shards for file in shard.files)

    def write(self, folder: Path) -> None:
        """Write collection.json, which completes the export; it is on disk when this returns."""
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
        """Read collection.json, but not the other files.

        Raises:
            InvalidRequest: the folder is not an export.
            StoreTooNew: the export is of a later version.
            StoreError: the manifest is invalid.
        """
        path = folder / MANIFEST
        try:
            if path.stat().st_size > MAX_MANIFEST:
                raise StoreError(f"{path} is larger than {MAX_MANIFEST} bytes, so it is not a manifest of an export.")
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise InvalidRequest(
                f"{folder} is not an exported collection ({path.name}: {error.strerror}); give a folder that "
                "`nnclr store export` wrote."
            ) from error
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path} is not JSON ({str(error)[:80]}); export the collection again.") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InvalidRequest(f"{path} is not the manifest of an export: it lacks the format {FORMAT!r}.")
        version = content.get("version")
        if isinstance(version, int) and version > VERSION:
            raise StoreTooNew(f"{folder} was exported by a later version of nnclr_hub ({version}); install that one.")
        try:
            if version != VERSION:
                raise ValueError(f"version {version!r:.80}")
            return cls._parsed(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"{path} is invalid ({type(error).__name__}: {str(error)[:150]}); export the collection again."
            ) from error

    @classmethod
    def _parsed(cls, content: dict[str, Any]) -> Self:
        spec = dict(content["spec"])
        if not isinstance(spec.get("indexed"), list) or not all(isinstance(key, str) for key in spec["indexed"]):
            raise ValueError("indexed must be a list of keys")
        shards = tuple(
            Shard(one["count"], ExportedFile(**one["items"]), ExportedFile(**one["vectors"]))
            for one in content["shards"]
        )
        if content["items"] != sum(shard.count for shard in shards):
            raise ValueError("the number of items is not the sum of the shards")
        name, thumbnails = content["name"], content["thumbnails"]
        if not isinstance(name, str) or not isinstance(thumbnails, bool):
            raise ValueError("name must be a string and thumbnails a boolean")
        return cls(name, CollectionSpec(**spec), content["items"], thumbnails, shards)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _sha256(path: Path, advance: Bytes = lambda count: None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()
