"""The files of an exported collection: how they are written, checked and read.

collection.json             format and version, name, specification, counts, size and SHA-256 of every other file
items-00000.parquet         id, metadata (JSON text), thumbnail (JPEG bytes or null), in ascending order of the ids
vectors-00000.safetensors   one tensor "vectors" (n, D), float32 or float16, in the same order
deleted-00003.txt           ids, one per line, in ascending order

An update of an export adds files with the changed items, and one with the ids of deleted items. For each id, the latest
update counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from nnclr_hub.errors import InvalidRequest, MissingDependency, StoreError, StoreTooNew
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import metadata_json
from nnclr_hub.store.folder import fsync_folder
from nnclr_hub.store.spec import CollectionSpec

MANIFEST = "collection.json"
FORMAT = "nnclr_hub collection"
VERSION = 2
MAX_MANIFEST = 16 * 1024 * 1024
CHUNK = 1024 * 1024
TENSOR = "vectors"
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
class ExchangeShard:
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
class ExportUpdate:
    """What changed since the last update: new and changed items, and the ids of deleted ones."""

    shards: tuple[ExchangeShard, ...]
    deleted: ExportedFile | None

    @property
    def files(self) -> tuple[ExportedFile, ...]:
        return (*(file for shard in self.shards for file in shard.files), *([self.deleted] if self.deleted else []))


@dataclass(frozen=True)
class Manifest:
    """The contents of an export.

    name: of the exported collection.
    items: their number.
    thumbnails: whether they were exported.
    updates: the oldest first.
    """

    name: str
    spec: CollectionSpec
    items: int
    thumbnails: bool
    shards: tuple[ExchangeShard, ...]
    updates: tuple[ExportUpdate, ...] = ()

    @property
    def layers(self) -> tuple[ExportUpdate, ...]:
        """The original export and its updates; of an id, the last one counts."""
        return ExportUpdate(self.shards, None), *self.updates

    @property
    def size(self) -> int:
        """Total bytes of the listed files."""
        return sum(file.size for layer in self.layers for file in layer.files)

    def write(self, folder: Path) -> None:
        """Write collection.json, which completes the export; it is on disk when this returns."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        text = json.dumps(content, indent=1)
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
            StoreTooNew: another version wrote the export, in a format that this one does not read.
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
                "`nnclr store export` wrote, or use `nnclr index` for a folder of images."
            ) from error
        except (ValueError, RecursionError) as error:
            raise StoreError(f"{path} is not JSON ({str(error)[:80]}); export the collection again.") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InvalidRequest(f"{path} is not the manifest of an export: it lacks the format {FORMAT!r}.")
        version = content.get("version")
        if isinstance(version, int) and version != VERSION:
            raise StoreTooNew(
                f"{folder} is an export of format {version}, and this version of nnclr_hub reads only format "
                f"{VERSION}; import it with the version that wrote it."
            )
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
        shards = _parsed_shards(content["shards"])
        updates = tuple(
            ExportUpdate(_parsed_shards(one["shards"]), ExportedFile(**one["deleted"]) if one["deleted"] else None)
            for one in content["updates"]
        )
        name, items, thumbnails = content["name"], content["items"], content["thumbnails"]
        if not _is_count(items) or (not updates and items != sum(shard.count for shard in shards)):
            raise ValueError("the number of items is not the sum of the shards")
        if not isinstance(name, str) or not isinstance(thumbnails, bool):
            raise ValueError("name must be a string and thumbnails a boolean")
        return cls(name, CollectionSpec(**spec), items, thumbnails, shards, updates)


def _parsed_shards(content: list[dict[str, Any]]) -> tuple[ExchangeShard, ...]:
    return tuple(
        ExchangeShard(one["count"], ExportedFile(**one["items"]), ExportedFile(**one["vectors"])) for one in content
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _sha256(path: Path, advance: Bytes = lambda count: None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


# ------------------------------------------------------------------------------ shards


def require_parquet() -> None:
    """Raise MissingDependency if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "Arrow and Parquet files need pyarrow, which is not installed: pip install 'nnclr_hub[parquet]'."
        ) from error


def write_ids(folder: Path, number: int, ids: Sequence[str]) -> ExportedFile:
    """Write ids to a new file, which is on disk when this returns."""
    path = folder / f"deleted-{number:05}.txt"
    with path.open("x", encoding="ascii") as file:
        file.writelines(f"{id}\n" for id in ids)
        file.flush()
        os.fsync(file.fileno())
    return ExportedFile.of(path)


def write_shard(folder: Path, number: int, batches: Iterator[list[Item]], spec: CollectionSpec) -> ExchangeShard:
    """Write items to two new files, which are on disk when this returns."""
    from pyarrow.parquet import ParquetWriter
    from safetensors.numpy import save

    table, tensor = folder / f"items-{number:05}.parquet", folder / f"vectors-{number:05}.safetensors"
    vectors: list[np.ndarray] = []
    with table.open("xb") as file:
        with ParquetWriter(file, _schema(), compression="zstd") as writer:
            for items in batches:
                writer.write_table(_table(items))
                vectors.append(stored(items, spec))
        file.flush()
        os.fsync(file.fileno())
    with tensor.open("xb") as file:
        file.write(save({TENSOR: np.concatenate(vectors)}))
        file.flush()
        os.fsync(file.fileno())
    return ExchangeShard(sum(map(len, vectors)), ExportedFile.of(table), ExportedFile.of(tensor))


def check_shard(folder: Path, shard: ExchangeShard, spec: CollectionSpec, after: str) -> str:
    """Compare the contents of the files with the manifest.

    Args:
        folder: of the export.
        shard: to check.
        spec: of the collection.
        after: the last id of the previous shard.

    Returns:
        The last id of this shard.

    Raises:
        StoreError: counts, columns or dimension differ, or ids do not ascend.
    """
    from pyarrow.parquet import ParquetFile
    from safetensors import safe_open

    with _readable(folder / shard.vectors.file) as path, safe_open(path, "numpy") as file:
        names = list(file.keys())
        if names != [TENSOR]:
            raise ValueError(f"it contains {', '.join(names)[:80] or 'nothing'} instead of {TENSOR!r}")
        part = file.get_slice(TENSOR)
        shape, kind = tuple(part.get_shape()), part.get_dtype()
        if shape != (shard.count, spec.dim) or kind != spec.precision.upper():
            raise ValueError(f"its vectors are {shape} {kind}, not {(shard.count, spec.dim)} {spec.precision.upper()}")
    with _readable(folder / shard.items.file) as path, ParquetFile(path) as table:
        if not table.schema_arrow.equals(_schema()):
            raise ValueError("its columns are not id, metadata and thumbnail")
        if table.metadata.num_rows != shard.count:
            raise ValueError(f"it has {table.metadata.num_rows} items, not {shard.count}")
        for batch in table.iter_batches(columns=["id"]):
            for id in batch.column("id").to_pylist():
                if id is None or id <= after:
                    raise ValueError(f"its ids do not ascend: {id!r:.80} after {after!r:.80}")
                after = id
    return after


def read_shard(folder: Path, shard: ExchangeShard, batch: int) -> Iterator[list[Item]]:
    """Yield its items in batches.

    Raises:
        StoreError: a file cannot be read, or metadata is not JSON.
    """
    from pyarrow.parquet import ParquetFile
    from safetensors import safe_open

    with (
        _readable(folder / shard.vectors.file) as tensor,
        safe_open(tensor, "numpy") as file,
        _readable(folder / shard.items.file) as path,
        ParquetFile(path) as table,
    ):
        part, done = file.get_slice(TENSOR), 0
        for rows in table.iter_batches(batch_size=batch):
            vectors = part[done : done + len(rows)].astype(np.float32)
            columns = (rows.column(name).to_pylist() for name in ("id", "metadata", "thumbnail"))
            items = [
                Item(id, vector, json.loads(text), thumbnail)
                for vector, id, text, thumbnail in zip(vectors, *columns, strict=True)
            ]
            done += len(rows)
            yield items


def _table(items: Sequence[Item]) -> Any:
    import pyarrow

    columns = [[item.id for item in items], [metadata_json(item) for item in items], [i.thumbnail for i in items]]
    return pyarrow.table(columns, schema=_schema())


def _schema() -> Any:
    import pyarrow

    kinds = (("id", pyarrow.string()), ("metadata", pyarrow.string()), ("thumbnail", pyarrow.binary()))
    return pyarrow.schema([pyarrow.field(name, kind) for name, kind in kinds])


def stored(items: Sequence[Item], spec: CollectionSpec) -> np.ndarray:
    """Return the vectors (n, D) in the precision of the collection."""
    return np.stack([item.vector for item in items]).astype(np.float16 if spec.precision == "f16" else np.float32)


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """Translate errors about a file into StoreError."""
    from pyarrow import ArrowException
    from safetensors import SafetensorError

    try:
        yield path
    except (ArrowException, SafetensorError, ValueError, KeyError, OSError) as error:
        raise StoreError(
            f"{path} is not a file of this export ({' '.join(str(error).split())[:200]}); export the collection again."
        ) from error
