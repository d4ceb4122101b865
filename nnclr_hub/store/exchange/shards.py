"""The two files of a shard of an export: a Parquet table of items and a safetensors file of their vectors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.errors import MissingDependency, StoreError
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import metadata_json
from nnclr_hub.store.exchange.manifest import ExportedFile, Shard
from nnclr_hub.store.spec import CollectionSpec

TENSOR = "vectors"


def require_parquet() -> None:
    """Raise MissingDependency if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "Export and import need the package pyarrow, which is not installed: pip install 'nnclr_hub[parquet]'."
        ) from error


def write_shard(folder: Path, number: int, batches: Iterator[list[Item]], spec: CollectionSpec) -> Shard:
    """Write items to two new files, which are on disk when this returns."""
    from pyarrow.parquet import ParquetWriter
    from safetensors.numpy import save

    table, tensor = folder / f"items-{number:05}.parquet", folder / f"vectors-{number:05}.safetensors"
    vectors: list[np.ndarray] = []
    with table.open("xb") as file:
        with ParquetWriter(file, _schema(), compression="zstd") as writer:
            for items in batches:
                writer.write_table(_table(items))
                vectors.append(_stored(items, spec))
        file.flush()
        os.fsync(file.fileno())
    with tensor.open("xb") as file:
        file.write(save({TENSOR: np.concatenate(vectors)}))
        file.flush()
        os.fsync(file.fileno())
    return Shard(sum(map(len, vectors)), ExportedFile.of(table), ExportedFile.of(tensor))


def check_shard(folder: Path, shard: Shard, spec: CollectionSpec, after: str) -> str:
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


def read_shard(folder: Path, shard: Shard, batch: int) -> Iterator[list[Item]]:
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


def _stored(items: Sequence[Item], spec: CollectionSpec) -> np.ndarray:
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
