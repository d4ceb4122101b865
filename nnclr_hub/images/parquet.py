"""Images in a column of a Parquet file, as the data sets of Hugging Face have them, at a path or address.

    for number, (name, label) in enumerate(rows("train-00000.parquet", changed)):
        read_row("train-00000.parquet", changed, number)

`changed` is the modification time of the file, which distinguishes it from one that replaced it.

The column contains the bytes of the files, or structs {bytes, path}. Parquet is read a row group at a time, so the row
groups that are in use stay in memory.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate, repeat
from pathlib import PurePath
from typing import Any, NamedTuple

from nnclr_hub.errors import ImageError, InvalidRequest, NNCLRHubError
from nnclr_hub.images.byte_cache import ByteCache
from nnclr_hub.json_text import MALFORMED, parse_json
from nnclr_hub.missing_values import is_missing
from nnclr_hub.remote_files import is_address, open_file_system, reading

COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "content")  # the first one that has bytes is read
LABELS = ("label", "cls", "class")
_groups = ByteCache(1 << 30)  # bytes of row groups


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


def read_row(table: str, changed: float, row: int) -> bytes:
    """Return the bytes of the image in a row; raise ImageError if it has none."""
    layout = _layout(table, changed)
    group = bisect_right(layout.groups, row)

    def read() -> Any:
        with _opened(table) as file:
            column = file.read_row_group(group, columns=[layout.column], use_threads=False).column(0)
            return _field(column.combine_chunks(), layout.column)

    values = _groups.get((table, changed, group), read, lambda values: values.nbytes)
    data = values[row - (layout.groups[group - 1] if group else 0)].as_py()
    if data is None:
        raise ImageError(f"Row {row} of {table} has no image.")
    return data


def group_ends(table: str, changed: float) -> tuple[int, ...]:
    """Return the number of rows up to the end of each row group."""
    return _layout(table, changed).groups


def rows(table: str, changed: float) -> Iterator[tuple[str, str]]:
    """Yield a name for each row, its number and the name of its file if it has one; and its label, or "".

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
            for batch in file.iter_batches(columns=[column], use_threads=False):
                yield from _field(batch.column(0), column).to_pylist()

    for number, (name, label) in enumerate(zip(values(layout.names), values(layout.label), strict=True)):
        yield f"{number:08}" + (f"-{PurePath(name).name}" if name else ""), _label(label, layout.classes)


def _label(value: Any, classes: tuple[str, ...]) -> str:
    if is_missing(value) or value == -1:  # how data sets of Hugging Face write an unknown label
        return ""
    if isinstance(value, float) and value.is_integer():  # a column of whole numbers with missing ones, by pandas
        value = int(value)
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else str(value)


def _field(values: Any, column: str) -> Any:
    for part in column.split(".")[1:]:
        values = values.field(part)
    return values


@lru_cache(4096)
def _layout(table: str, changed: float) -> _Layout:
    """Find the column of images."""
    import pyarrow as pa

    with _opened(table) as file:
        schema, metadata = file.schema_arrow, file.metadata
        groups = tuple(accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))
    label = next((name for name in LABELS if name in schema.names), "")
    try:  # as `datasets` keeps the names of classes in a file
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = tuple(map(str, features[label]["names"]))
    except MALFORMED:
        classes = ()
    for name in (one for one in COLUMNS if one in schema.names):
        kind = schema.field(name).type
        inner = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
        for column, found in ((name, kind), (f"{name}.bytes", inner.get("bytes", pa.null()))):
            found = found.value_type if pa.types.is_dictionary(found) else found
            if pa.types.is_binary(found) or pa.types.is_large_binary(found) or pa.types.is_binary_view(found):
                return _Layout(column, f"{name}.path" if "path" in inner else "", label, classes, groups)
    raise InvalidRequest(
        f"{table} has no column of images; expected one of {', '.join(COLUMNS)} with the bytes of files, got "
        f"{', '.join(schema.names)[:200]}."
    )


@contextmanager
def _opened(table: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        if is_address(table):
            files, path = open_file_system(table)
            with reading(table), ParquetFile(files.open(path, "rb")) as file:
                yield file
        else:
            with pa.OSFile(os.fsencode(table)) as raw, ParquetFile(raw) as file:  # a path need not be UTF-8
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
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow gives none for damaged bytes
            raise
        raise InvalidRequest(f"{table} is not a valid Parquet file ({str(error)[:150]}).") from error
    except pa.ArrowException as error:
        raise NNCLRHubError(f"{table} could not be read: {type(error).__name__} ({str(error)[:150]}).") from error
