"""Items by their vectors, read from NDJSON, Arrow and Parquet files without loading a whole file.

    for number, item, done in read_items(Path("items.parquet"), FORMATS["parquet"]):
        ...             # Item, or the reason why the row is not one; bytes of the file that are read

NDJSON has one object with `id`, `vector` and `metadata` per line. A table has the columns `id` and `vector`. Its column
`metadata` is JSON text or a struct, and all other columns become metadata, too: dates and times as ISO 8601, and
neither null nor NaN, which pandas writes for a missing number.

A few kilobytes of a table may decode to gigabytes, and a damaged one may abort pyarrow or keep it busy forever. So
tables are decoded in a process with limits, which returns one batch of rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any

import numpy as np

from nnclr_hub.errors import ImageError, ImageTooExpensive, InvalidRequest
from nnclr_hub.images.pool import DecodingLimits, DecodingPool
from nnclr_hub.json_text import parse_json
from nnclr_hub.missing_values import is_nan
from nnclr_hub.plural import counted
from nnclr_hub.store.base import Item
from nnclr_hub.store.exchange import require_parquet
from nnclr_hub.workbench.payload import decode_vector
from nnclr_hub.workbench.requests import ImportFormat

MOST_LINE = 4 << 20  # bytes: the longest vector as text, and 64 KiB of metadata
ROWS = 1000  # in a batch
FIELDS = ("id", "vector", "metadata")
CPU_S = 30.0  # CPU seconds to decode a batch
# bytes that decoding may take: a part of a table is decoded as a whole, and decodes to 16 times its size at most
MEMORY, MOST_RATIO = 1 << 30, 32
MOST_BATCH = 128 << 20  # bytes of the items of a batch
# a file with more rows than FREE_ROWS has at most ROWS_PER_BYTE: a few kilobytes may hold billions of equal rows,
# and a million ascending ids take down to 0.056 bytes each
FREE_ROWS, ROWS_PER_BYTE = 100_000, 32
Row = tuple[int, Item | str, int]


def read_items(path: Path, format: ImportFormat) -> Iterator[Row]:
    """Yield the number of each row, its item or why it is not one, and how many bytes are read.

    Args:
        format: one that holds vectors.

    Raises:
        MissingDependency: pyarrow is needed and not installed.
        InvalidRequest: the table is damaged, or exceeds a limit. Rows before that are yielded.
        ServiceError, NotReady: the process that decodes failed for another reason than the file.
    """
    if format.name == "ndjson":
        yield from _lines(path)
        return
    require_parquet()
    size, number = path.stat().st_size, 0
    limits = DecodingLimits(CPU_S, max(MEMORY, MOST_RATIO * size))
    pool = DecodingPool(1, limits)
    try:
        while True:
            try:
                items, done = pool.run(read_batch, path, format.name, number)
            except ImageTooExpensive as error:
                raise InvalidRequest(
                    f"Decoding some rows of the file takes more than {CPU_S:g} CPU seconds or {limits.memory >> 20} "
                    "MiB; write it again, with smaller row groups."
                ) from error
            except ImageError as error:
                raise _damaged(format.name, str(error)) from error
            if not items:
                return
            for item in items:
                number += 1
                yield number, item, done
            if number > max(FREE_ROWS, ROWS_PER_BYTE * size):
                raise InvalidRequest(f"The file has over {ROWS_PER_BYTE} rows per byte; write each row once.")
    finally:
        pool.close()


def _damaged(format: str, reason: str) -> InvalidRequest:
    reason = " ".join(reason.split())[:200]
    return InvalidRequest(f"The file is not {format}, or it is damaged ({reason}); write it again.")


def _lines(path: Path) -> Iterator[Row]:
    number = 0
    with path.open("rb") as file:
        while line := file.readline(MOST_LINE + 1):
            number += 1
            whole = line
            while len(line) > MOST_LINE and not line.endswith(b"\n"):  # skip the rest of a line that is too long
                line = file.readline(MOST_LINE + 1)
            if len(whole) > MOST_LINE:
                yield number, f"The line is longer than {MOST_LINE >> 20} MiB.", file.tell()
            elif whole.strip():
                yield number, _parsed(whole), file.tell()


def _parsed(line: bytes) -> Item | str:
    """Return the item of a line of JSON, or why it is not one."""
    try:
        row = parse_json(line)
    except ValueError as error:
        return f"The line is not valid ({error})."
    if not isinstance(row, dict) or row.keys() - set(FIELDS) or not {"id", "vector"} <= row.keys():
        return "The line must be an object with id and vector, and may have metadata."
    return _item(row["id"], row["vector"], row.get("metadata"), {})


def _item(id: Any, vector: Any, metadata: Any, extra: Mapping[str, Any]) -> Item | str:
    """Return an item, or why its parts do not make one; the collection checks the values."""
    try:
        if isinstance(metadata, str):
            metadata = parse_json(metadata)
        if not isinstance(metadata, Mapping | None):
            return f"The metadata must be an object, got {metadata!r:.80}."
        if not isinstance(id, str):
            return f"The id must be a string, got {id!r:.80}; write it in quotes."
        return Item(id, decode_vector(vector), {**extra, **(metadata or {})})
    except ValueError as error:  # also InvalidRequest
        return str(error)


# ---- in the process that decodes


@dataclass
class _Reader:
    """A table that this process is reading."""

    key: tuple[str, str]
    batches: Iterator[tuple[Any, int]]
    number: int = 0


_reader: _Reader | None = None


def read_batch(path: str, format: str, start: int) -> tuple[list[Item | str], int]:
    """Return the items after the first `start` rows, and how many bytes are read; no items at the end.

    The process keeps the table open, because the next batch is usually the one that follows.
    """
    global _reader
    try:
        if _reader is None or (_reader.key, _reader.number) != ((path, format), start):
            _reader = _Reader((path, format), _batches(path, format))
            while _reader.number < start:
                _reader.number += len(next(_reader.batches)[0])
        batch, done = next(_reader.batches, (None, 0))
        items = [] if batch is None else _items(batch)
        _reader.number += len(items)
    except (InvalidRequest, MemoryError, ImportError):
        raise
    except Exception as error:
        if getattr(error, "errno", None):  # an error of the machine
            raise
        raise _damaged(format, str(error) or type(error).__name__) from error
    size = sum(len(item) if isinstance(item, str) else item.vector.nbytes + _size(item.metadata) for item in items)
    if size > MOST_BATCH:
        raise InvalidRequest(
            f"The file has {counted(len(items), 'row')} that take {size >> 20} MiB together, and the limit is "
            f"{MOST_BATCH >> 20} MiB. Write shorter values."
        )
    return items, done


def _size(value: Any) -> int:
    """Return about how many bytes a value of metadata takes on its way to another process."""
    if isinstance(value, dict):
        return sum(len(key) + _size(one) for key, one in value.items())
    return sum(map(_size, value)) if isinstance(value, list) else len(value) if isinstance(value, str | bytes) else 8


def _batches(path: str, format: str) -> Iterator[tuple[Any, int]]:
    """Yield record batches of at most ROWS rows, and how many bytes are read."""
    import pyarrow
    from pyarrow import ipc
    from pyarrow.parquet import ParquetFile

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())  # others reserve addresses, which the limit counts
    size = Path(path).stat().st_size
    if format == "parquet":
        with ParquetFile(path) as table:
            read, count = 0, table.metadata.num_rows
            for batch in table.iter_batches(ROWS, use_threads=False):
                read += len(batch)
                yield batch, size * read // max(1, count)
        if read != count:
            raise ValueError(f"its footer has {counted(count, 'row')}, and its row groups have {read}")
        return
    with pyarrow.OSFile(path) as source:
        is_file = source.read(6) == b"ARROW1"  # a stream has no such mark
        source.seek(0)
        options = ipc.IpcReadOptions(use_threads=False)
        if is_file:
            table = ipc.open_file(source, options=options)
            parts = (table.get_batch(i) for i in range(table.num_record_batches))
            total = table.num_record_batches
        else:
            parts, total = ipc.open_stream(source, options=options), 0
        for number, large in enumerate(parts, 1):
            large.validate(full=True)  # invalid offsets would read foreign memory
            for start in range(0, len(large), ROWS):
                yield large.slice(start, ROWS), size * number // total if total else source.tell()


def _items(batch: Any) -> list[Item | str]:
    names = batch.schema.names
    if missing := {"id", "vector"} - set(names):
        raise InvalidRequest(
            f"The file has no column {min(missing)!r}; it needs id and vector. For a table of images, use `nnclr "
            "index`."
        )
    columns = {name: batch.column(name).to_pylist() for name in names if name != "vector"}
    others = [name for name in names if name not in FIELDS]
    metadata = columns.get("metadata") or [None] * len(batch)
    items = []
    for i, (id, vector) in enumerate(zip(columns["id"], _vectors(batch.column("vector")), strict=True)):
        extra = {name: value for name in others if (value := _plain(columns[name][i])) is not None}
        # a table has one type for all ids, so 7 and "007" cannot both occur
        items.append(_item(str(id) if type(id) is int else id, vector, metadata[i], extra))
    return items


def _plain(value: Any) -> Any:
    """Return what JSON has for the value of a cell."""
    if isinstance(value, date | time):
        return value.isoformat()
    return None if is_nan(value) else value


def _vectors(column: Any) -> list[Any]:
    """Return the vectors in a column of a table: arrays if they are lists of numbers."""
    import pyarrow
    from pyarrow import compute

    kind = column.type
    if isinstance(kind, pyarrow.ListType | pyarrow.LargeListType | pyarrow.FixedSizeListType):
        numbers = column.flatten()  # without the lists that are null
        if pyarrow.types.is_integer(numbers.type) or pyarrow.types.is_floating(numbers.type):
            rows = numbers.to_numpy(zero_copy_only=False).astype(np.float32)
            sizes = compute.call_function("list_value_length", [column]).fill_null(0).to_numpy(zero_copy_only=False)
            parts = np.split(rows, np.cumsum(sizes)[:-1]) if len(sizes) else []
            return [part if valid else None for part, valid in zip(parts, column.is_valid().to_pylist(), strict=True)]
    return column.to_pylist()
