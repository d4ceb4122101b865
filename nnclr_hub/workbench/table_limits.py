"""Limits of tables from files, checked before they are decoded: a few kilobytes may decode to gigabytes.

for batch in arrow_batches(source, most):
    check_batch(batch, most)                        # before values become Python objects
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from nnclr_hub.errors import InvalidRequest

ARROW_FILE = b"ARROW1"  # begins an Arrow file; a stream has no such mark
VALUE = 8  # bytes: the least that a value takes in a Python list
DICTIONARY_BATCH, RECORD_BATCH = 2, 3  # types of messages in Arrow's Message.fbs


def check_batch(batch: Any, most: int) -> None:
    """Check the size of a record batch when all its values are decoded.

    Raises:
        InvalidRequest: it is too large, or a column has an encoding that is not supported.
    """
    size = 0
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        size += _decoded(column, name)
    if size > most:
        raise InvalidRequest(
            f"{len(batch)} rows of the file take {size >> 20} MiB; the limit is {most >> 20} MiB. Write shorter values."
        )


def _decoded(array: Any, name: str) -> int:
    import pyarrow.compute as pc
    from pyarrow import BaseExtensionType, types

    kind = array.type
    if types.is_struct(kind):
        return sum(_decoded(one, name) for one in array.flatten()) + VALUE * len(array)
    if isinstance(kind, BaseExtensionType):
        return _decoded(array.storage, name)
    if any(is_type(kind) for is_type in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        return _decoded(array.flatten(), name) + VALUE * len(array)
    if types.is_map(kind):  # unlike `flatten`, keys and items are not those of a slice
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        pairs = (array.keys.slice(first, end - first), array.items.slice(first, end - first))
        return sum(_decoded(one, name) for one in pairs) + VALUE * len(array)
    if types.is_dictionary(kind):
        values = array.dictionary
        if _is_text(values.type):
            lengths = pc.take(pc.call_function("binary_length", [values]), array.indices)
            total = pc.call_function("sum", [pc.cast(lengths, "int64")])
            return int(total.as_py() or 0) + VALUE * len(array)
        if types.is_primitive(values.type):
            return VALUE * len(array)
    elif _is_text(kind) or types.is_primitive(kind) or types.is_null(kind) or types.is_decimal(kind):
        return max(array.nbytes, VALUE * len(array))
    elif types.is_fixed_size_binary(kind):
        return max(kind.byte_width, VALUE) * len(array)
    raise InvalidRequest(
        f"Column {name!r} has the type {kind!s:.80}, which cannot be imported; write it as plain values."
    )


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return any(
        is_type(kind) for is_type in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    )


def _check(size: int, most: int, what: str) -> None:
    if size > most:
        raise InvalidRequest(
            f"{what} decodes to {size >> 20} MiB, and the limit for this file is {most >> 20} MiB; write fewer rows "
            "per batch or row group."
        )


def arrow_batches(source: Any, most: int) -> Iterator[Any]:
    """Yield the record batches of an Arrow file or stream, each checked before it is decompressed.

    Raises:
        InvalidRequest: one is too large.
    """
    from pyarrow import ArrowInvalid, ipc

    expected, start = None, 0
    if source.read(len(ARROW_FILE)) == ARROW_FILE:
        expected, start = ipc.open_file(source).num_record_batches, 8  # a stream follows the padded mark
    source.seek(start)
    for message in ipc.MessageReader.open_stream(source):
        _check(_decompressed(message), most, "A record batch")
    source.seek(start)
    number = 0
    for batch in ipc.open_stream(source):
        batch.validate(full=True)  # invalid offsets would read foreign memory
        yield batch
        number += 1
    if expected not in (None, number):
        raise ArrowInvalid(f"{number} of {expected} record batches found")


def _decompressed(message: Any) -> int:
    """Return the size of a message after decompression, from the length before each compressed buffer."""
    try:
        metadata = memoryview(message.metadata)
        table = _at(metadata, 0)
        kind, header = _field(metadata, table, 1), _field(metadata, table, 2)
        if message.body is None or kind is None or metadata[kind] not in (DICTIONARY_BATCH, RECORD_BATCH):
            return 0
        record: int | None = _at(metadata, header)
        if metadata[kind] == DICTIONARY_BATCH:
            record = _at(metadata, _field(metadata, record, 1))
        buffers = _field(metadata, record, 2)
        if buffers is None or _field(metadata, record, 3) is None:  # not compressed
            return 0
        vector, body, size = _at(metadata, buffers), memoryview(message.body), 0
        for i in range(struct.unpack_from("<I", metadata, vector)[0]):
            offset, length = struct.unpack_from("<qq", metadata, vector + 4 + 16 * i)
            if length:
                size += max(length, struct.unpack_from("<q", body, offset)[0])  # -1: not compressed
        return size
    except (struct.error, IndexError, TypeError) as error:
        raise InvalidRequest("The file is not arrow, or it is damaged; write it again.") from error


def _at(metadata: memoryview, place: int | None) -> int:
    """Return where an offset of a flatbuffer leads."""
    return place + struct.unpack_from("<I", metadata, place)[0]  # type: ignore[operator] - None raises TypeError


def _field(metadata: memoryview, table: int | None, number: int) -> int | None:
    """Return the place of a field of a table in a flatbuffer; None: it has the default value."""
    fields = table - struct.unpack_from("<i", metadata, table)[0]  # type: ignore[operator] - None raises TypeError
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, fields)[0]:
        return None
    offset = struct.unpack_from("<H", metadata, fields + 4 + 2 * number)[0]
    return table + offset if offset else None  # type: ignore[operator]
