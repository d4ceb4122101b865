"""Items by their vectors, read from NDJSON, Arrow and Parquet files without loading a whole file.

    file = ItemFile(Path("items.parquet"), FORMATS["parquet"])
    for number, item in file:           # Item, or the reason why the row is not one
        ...
    file.done, file.total               # bytes

NDJSON has one object with `id`, `vector` and `metadata` per line. A table has the columns `id` and `vector`. Its column
`metadata` is JSON text or a struct, and all other columns become metadata, too: dates and times as ISO 8601, and
neither null nor NaN, which pandas writes for a missing number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.missing_values import is_nan
from nnclr_hub.store.base import Item
from nnclr_hub.store.exchange import require_parquet
from nnclr_hub.workbench.import_format import ImportFormat
from nnclr_hub.workbench.parquet_process import parquet_batches
from nnclr_hub.workbench.payload import decode_vector
from nnclr_hub.workbench.table_limits import arrow_batches, check_batch

MOST_LINE = 4 << 20  # bytes: the longest vector as text, and 64 KiB of metadata
ROWS = 1000
MOST_BATCH = 512 << 20  # bytes of one batch of a table in memory
FIELDS = ("id", "vector", "metadata")
MOST_RATIO = 16  # of the decoded size of a part of a table to the size of the file, if it exceeds MOST_BATCH

Row = tuple[int, Item | str]


class ItemFile:
    """The rows of a file, counted from 1.

    Args:
        path: of the file.
        format: of the file, one that holds vectors.

    Raises:
        MissingDependency: pyarrow is needed and not installed.
    """

    def __init__(self, path: Path, format: ImportFormat) -> None:
        self._path = path
        self._format = format
        self.done = 0
        self.total = path.stat().st_size
        if format.name != "ndjson":
            require_parquet()

    def __iter__(self) -> Iterator[Row]:
        """Yield each row; a damaged table raises InvalidRequest where the damage is."""
        if self._format.name == "ndjson":
            with self._path.open("rb") as file:
                yield from self._lines(file)
        else:
            with _sound(self._format.name):
                yield from self._rows()
        self.done = self.total

    def _lines(self, file: BinaryIO) -> Iterator[Row]:
        number = 0
        while line := file.readline(MOST_LINE + 1):
            number += 1
            whole = line
            while len(line) > MOST_LINE and not line.endswith(b"\n"):  # skip the rest of a line that is too long
                line = file.readline(MOST_LINE + 1)
            self.done = file.tell()
            if len(whole) > MOST_LINE:
                yield number, f"The line is longer than {MOST_LINE >> 20} MiB."
            elif whole.strip():
                yield number, _parsed(whole)

    def _rows(self) -> Iterator[Row]:
        number = 0
        for batch in self._batches():
            missing = {"id", "vector"} - set(batch.schema.names)
            if missing:
                raise InvalidRequest(
                    f"The file has no column {min(missing)!r}; it needs id and vector. For a table of images, "
                    "use `nnclr index`."
                )
            vectors = batch.column("vector")
            others = [name for name in batch.schema.names if name not in FIELDS]
            columns = {name: batch.column(name).to_pylist() for name in ("id", *others)}
            if "metadata" in batch.schema.names:
                columns["metadata"] = batch.column("metadata").to_pylist()
            for i in range(len(batch)):
                number += 1
                extra = {name: value for name in others if (value := _plain(columns[name][i])) is not None}
                metadata = columns["metadata"][i] if "metadata" in columns else None
                id = columns["id"][i]
                # a table has one type for all ids, so 7 and "007" cannot both occur
                yield number, _item(str(id) if type(id) is int else id, _numbers(vectors[i]), metadata, extra)

    def _batches(self) -> Iterator[Any]:
        """Yield record batches of at most ROWS rows, which take at most MOST_BATCH when decoded."""
        import pyarrow

        most = max(MOST_BATCH, MOST_RATIO * self.total)
        if self._format.name == "parquet":
            for batch, rows in parquet_batches(self._path, ROWS, MOST_BATCH, 2 * most):
                yield batch
                self.done = min(self.total, self.done + self.total * len(batch) // max(1, rows))
            return
        with pyarrow.memory_map(str(self._path)) as source:
            for large in arrow_batches(source, most):
                for start in range(0, len(large), ROWS):
                    batch = large.slice(start, ROWS)
                    check_batch(batch, MOST_BATCH)
                    yield batch
                self.done = min(self.total, self.done + large.nbytes)


def _parsed(line: bytes) -> Item | str:
    """Return the item of a line of JSON, or why it is not one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"The line is not JSON ({error})."
    if not isinstance(row, dict) or row.keys() - set(FIELDS) or not {"id", "vector"} <= row.keys():
        return "The line must be an object with id and vector, and may have metadata."
    return _item(row["id"], row["vector"], row.get("metadata"), {})


def _item(id: Any, vector: Any, metadata: Any, extra: Mapping[str, Any]) -> Item | str:
    """Return an item, or why its parts do not make one; the collection checks the values."""
    try:
        if isinstance(metadata, str):
            metadata = json.loads(metadata)
        if not isinstance(metadata, Mapping | None):
            return f"The metadata must be an object, got {metadata!r:.80}."
        if not isinstance(id, str):
            return f"The id must be a string, got {id!r:.80}; write it in quotes."
        return Item(id, decode_vector(vector), {**extra, **(metadata or {})})
    except (InvalidRequest, ValueError, RecursionError) as error:
        return str(error)


def _plain(value: Any) -> Any:
    """Return what JSON has for the value of a cell."""
    if isinstance(value, date | time):
        return value.isoformat()
    return None if is_nan(value) else value


def _numbers(value: Any) -> Any:
    """Return the vector in a cell of a table: an array if it is a list of numbers."""
    numbers = getattr(value, "values", None)
    if numbers is None:
        return value.as_py()
    try:
        return numbers.to_numpy(zero_copy_only=False).astype(np.float32)
    except (TypeError, ValueError):
        return value.as_py()


@contextmanager
def _sound(name: str) -> Iterator[None]:
    """Raise InvalidRequest if pyarrow cannot read a file."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidRequest(f"The file is not {name}, or it is damaged ({reason}); write it again.") from error
