"""Join all shards of a bulk run into one file; its suffix selects the format.

join(open_shards(Path("vectors.npy.shards")), Path("vectors.npy"))

vectors.npy         (N, D) float32 or float16, unit rows; the name of each row's image is a line of vectors.txt
vectors.npz         arrays "ids", "paths", "labels", "metadata" (N,) of text, and "vectors" (N, D)
vectors.parquet     columns id, path, label, metadata (JSON text) and vector, a list of D numbers
vectors.csv         columns id, path, label, metadata (JSON text) and v0, v1, ...

One shard at a time is in memory.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.bulk.atomic_file import sweep, written_whole
from nnclr_hub.bulk.plan import PRECISIONS
from nnclr_hub.bulk.shards import Shard, Shards
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.json_text import is_utf8
from nnclr_hub.plural import counted
from nnclr_hub.store.exchange import require_parquet

ARRAY, ARRAYS, PARQUET, CSV = ".npy", ".npz", ".parquet", ".csv"
COLUMNS = ("id", "path", "label", "metadata")  # before the vector
MOST_TEXTS = 1 << 30  # bytes of one array of texts
Shape = tuple[int, int]


def check_format(file: Path) -> None:
    """Check that the packages for the format of a file are installed; raise MissingDependency if not."""
    if file.suffix.lower() == PARQUET:
        require_parquet()


def join(shards: Shards, file: Path) -> Shape:
    """Write the file; it is on disk when this returns.

    Args:
        file: its name ends in one of FORMATS.

    Returns:
        The shape (N, D).

    Raises:
        InvalidRequest: shards are missing, or the texts of a .npz file would take more than 1 GiB.
        ImageError: no image could be read.
        MissingDependency: pyarrow is not installed.
        DiskFull: nothing was written.
    """
    shards.require_all()
    shape = sum(shard.count for shard in shards), shards.plan.embed_dim
    if not shape[0]:
        raise ImageError(
            f"None of {counted(shards.plan.images(), 'image')} could be read; the shards list the reasons."
        )
    FORMATS[file.suffix.lower()](shards, file, shape)
    broken = file.with_suffix(".broken.txt")
    broken.unlink(missing_ok=True)
    if reasons := [f"{path}: {reason}" for shard in shards for path, reason in shard.broken]:
        with written_whole(broken) as log:
            log.write(_lines(reasons))
    for path in (file, file.with_suffix(".txt")):
        sweep(file.parent, path.name)
    return shape


def _write_array(shards: Shards, file: Path, shape: Shape) -> None:
    with written_whole(file.with_suffix(".txt")) as names, written_whole(file) as rows:
        # written, not memory-mapped: with a full disk, a memory-mapped file would kill the process
        _write_header(rows, shape, _kind(shards))
        for shard in shards:
            rows.write(shard.vectors.tobytes())
            names.write(_lines(shard.paths))


def _write_arrays(shards: Shards, file: Path, shape: Shape) -> None:
    # numpy's texts have one width, which is known after a first pass
    widths = [1] * len(COLUMNS)
    for shard in shards:
        for row in _texts(shard):
            widths = [max(width, len(text)) for width, text in zip(widths, row, strict=True)]
    kinds = [np.dtype(f"<U{width}") for width in widths]
    for name, kind in zip(COLUMNS, kinds, strict=True):
        if shape[0] * kind.itemsize > MOST_TEXTS:
            other = file.with_suffix(PARQUET)
            raise InvalidRequest(
                f"The texts of {name} would take {shape[0] * kind.itemsize / 1e9:.1f} GB in {file}, because numpy pads "
                f"each to the longest; rename {shards.folder} to {other}.shards and write {other} instead."
            )
    with written_whole(file) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("vectors.npy", "w", force_zip64=True) as member:
            _write_header(member, shape, _kind(shards))
            for shard in shards:
                member.write(shard.vectors.tobytes())
        for position, (name, kind) in enumerate(zip(("ids", "paths", "labels", "metadata"), kinds, strict=True)):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_header(member, shape[:1], kind)
                for shard in shards:
                    member.write(np.array([row[position] for row in _texts(shard)], kind).tobytes())


def _write_parquet(shards: Shards, file: Path, shape: Shape) -> None:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    number = pyarrow.float16() if shards.plan.precision == "f16" else pyarrow.float32()
    kinds: list[tuple[str, Any]] = [(name, pyarrow.string()) for name in COLUMNS]
    schema = pyarrow.schema([*kinds, ("vector", pyarrow.list_(number, shape[1]))])
    with written_whole(file) as out, ParquetWriter(out, schema, compression="zstd") as writer:
        for shard in shards:
            if other := next((path for path in shard.paths if not is_utf8(path)), None):
                logging.getLogger(__name__).warning("%s changes names that are not UTF-8: %s", file, other)
            texts = zip(*_texts(shard), strict=True) if shard.count else ([] for _ in COLUMNS)
            columns: list[Any] = [pyarrow.array([_valid(one) for one in column], pyarrow.string()) for column in texts]
            flat = pyarrow.array(shard.vectors.reshape(-1), number)
            columns.append(pyarrow.FixedSizeListArray.from_arrays(flat, shape[1]))
            writer.write_table(pyarrow.table(columns, schema=schema))


def _write_csv(shards: Shards, file: Path, shape: Shape) -> None:
    with written_whole(file) as out:
        text = io.TextIOWrapper(out, "utf-8", "surrogateescape", newline="", write_through=True)
        table = csv.writer(text)
        table.writerow([*COLUMNS, *(f"v{number}" for number in range(shape[1]))])
        for shard in shards:
            # as text, numbers have the fewest digits that give the same number again
            for row, numbers in zip(_texts(shard), shard.vectors.astype(str), strict=True):
                table.writerow([*row, *numbers])
        text.flush()
        text.detach()


FORMATS: dict[str, Callable[[Shards, Path, Shape], None]] = {
    ARRAY: _write_array,
    ARRAYS: _write_arrays,
    PARQUET: _write_parquet,
    CSV: _write_csv,
}


def _texts(shard: Shard) -> Iterator[tuple[str, str, str, str]]:
    for id, path, label, metadata in zip(shard.ids, shard.paths, shard.labels, shard.metadata, strict=True):
        yield id, path, label or "", json.dumps(metadata) if metadata else ""


def _kind(shards: Shards) -> np.dtype[Any]:
    return np.dtype(PRECISIONS[shards.plan.precision])


def _write_header(file: Any, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
    about = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)


def _valid(text: str) -> str:
    # the name of a file may not be UTF-8
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _lines(texts: Sequence[str]) -> bytes:
    return "".join(text.replace("\n", "\\n") + "\n" for text in texts).encode("utf-8", "surrogateescape")
