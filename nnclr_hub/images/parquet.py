"""Images in a column of a Parquet file, as the data sets of Hugging Face have them, at a path or address.

    for one in rows("train-00000.parquet", changed):
        ParquetImage("train-00000.parquet", changed, one.number).read()

The column contains the bytes of the files, or structs {bytes, path}. Parquet is read a row group at a time, so the row
groups that are in use stay in memory.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat
from pathlib import PurePath
from typing import Any, NamedTuple

from nnclr_hub.errors import ImageError, InvalidRequest, NNCLRHubError
from nnclr_hub.images.byte_cache import ByteCache
from nnclr_hub.missing_values import is_missing
from nnclr_hub.remote_files import is_address, open_file_system, reading

SUFFIX = ".parquet"
COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "content")  # the first one that has bytes is read
LABELS = ("label", "cls", "class")
_groups = ByteCache(1 << 30)  # bytes of row groups


class Row(NamedTuple):
    """An image of a table.

    name: its number, and the name of its file if the table has one.
    label: in the table, or "".
    """

    name: str
    number: int
    label: str


def is_table(place: str) -> bool:
    """Return whether a file is a table of images, by its name."""
    return place.lower().endswith(SUFFIX)


class _Layout(NamedTuple):
    """Where the images of a file are.

    column: path of the column with the bytes; image.bytes is a part of a struct.
    names: path of the column with the names of the files, or "".
    label: name of the column with labels, or "".
    classes: names of the labels 0, 1, ...; () if the table contains the labels themselves.
    groups: number of rows up to the end of each row group.
    """

    column: str
    names: str
    label: str
    classes: tuple[str, ...]
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParquetImage:
    """An image in a Parquet file.

    table: path or address of the file.
    changed: its modification time when it was listed.
    row: its number.
    """

    table: str
    changed: float
    row: int

    def read(self) -> bytes:
        """Return the bytes of the image; raise ImageError if the row has none."""
        layout = _layout(self.table, self.changed)
        group = bisect_right(layout.groups, self.row)

        def read() -> Any:
            with _opened(self.table) as file:
                return _field(
                    file.read_row_group(group, columns=[layout.column]).column(0).combine_chunks(), layout.column
                )

        values = _groups.get((self.table, self.changed, group), read, lambda values: values.nbytes)
        data = values[self.row - (layout.groups[group - 1] if group else 0)].as_py()
        if data is None:
            raise ImageError(f"Row {self.row} of {self.table} has no image.")
        return data


def group_ends(table: str, changed: float) -> tuple[int, ...]:
    """Return the number of rows up to the end of each row group."""
    return _layout(table, changed).groups


def rows(table: str, changed: float) -> Iterator[Row]:
    """Yield each row.

    Raises:
        InvalidRequest: the file is not a Parquet file with images, uses a part of the format that pyarrow does not
            read, or has a row group that does not fit into memory.
        ImportError: pyarrow is not installed; see `errors.missing_package`.
    """
    layout = _layout(table, changed)

    def values(column: str) -> Iterator[Any]:
        if not column:
            yield from repeat(None, layout.groups[-1] if layout.groups else 0)
            return
        with _opened(table) as file:
            for batch in file.iter_batches(columns=[column]):
                yield from _field(batch.column(0), column).to_pylist()

    for number, (name, label) in enumerate(zip(values(layout.names), values(layout.label), strict=True)):
        yield Row(f"{number:08}" + (f"-{PurePath(name).name}" if name else ""), number, _label(label, layout.classes))


def _label(value: Any, classes: tuple[str, ...]) -> str:
    if is_missing(value) or value == -1:  # how data sets of Hugging Face write an unknown label
        return ""
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with missing ones, by pandas
        value = int(value)
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else str(value)


def _field(values: Any, column: str) -> Any:
    """Return the part of structs that a path such as image.bytes names."""
    for part in column.split(".")[1:]:
        values = values.field(part)
    return values


@lru_cache(4096)
def _layout(table: str, changed: float) -> _Layout:
    """Find the column of images; `changed` distinguishes files that were replaced."""
    import pyarrow as pa

    with _opened(table) as file:
        schema, metadata = file.schema_arrow, file.metadata
        groups = tuple(accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))

    def is_binary(kind: Any) -> bool:
        return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)

    label = next((name for name in LABELS if name in schema.names), "")
    try:  # as `datasets` keeps the names of classes in a file
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):
        classes = ()
    for name in (one for one in COLUMNS if one in schema.names):
        kind = schema.field(name).type
        if is_binary(kind):
            return _Layout(name, "", label, classes, groups)
        inner = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        if is_binary(inner.get("bytes", pa.null())):
            return _Layout(f"{name}.bytes", f"{name}.path" if "path" in inner else "", label, classes, groups)
    raise InvalidRequest(
        f"{table} has no column of images; expected one of {', '.join(COLUMNS)} with the bytes of files, got "
        f"{', '.join(schema.names)[:200]}."
    )


@contextmanager
def _opened(table: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    remote = is_address(table)
    files, path = open_file_system(table) if remote else (None, table)
    with reading(table) if remote else nullcontext():
        try:
            with ParquetFile(path if files is None else files.open(path, "rb")) as file:
                yield file
        except pa.ArrowMemoryError as error:
            raise InvalidRequest(
                f"A row group of {table} does not fit into the free memory; write the file with smaller row groups."
            ) from error
        except pa.ArrowNotImplementedError as error:
            raise InvalidRequest(
                f"{table} is a Parquet file that pyarrow cannot read ({str(error)[:150]}); write it with another "
                "compression and plain columns."
            ) from error
        except (pa.ArrowInvalid, OSError) as error:
            # pyarrow raises OSError without a number for damaged bytes; a driver may do so for other reasons
            if isinstance(error, OSError) and (remote or error.errno is not None):
                raise
            raise InvalidRequest(f"{table} is not a valid Parquet file ({str(error)[:150]}).") from error
        except pa.ArrowException as error:
            raise NNCLRHubError(f"{table} could not be read: {type(error).__name__} ({str(error)[:150]}).") from error
