"""CSV tables with a header, in the encodings and with the separators that spreadsheets write."""

from __future__ import annotations

import codecs
import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from nnclr_hub.errors import InvalidRequest

SEPARATORS = (",", ";", "\t")
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_IRREGULAR = re.compile(r"//|^\./|/\.(/|$)|/$|^\.?$")
_HINT = "sep="  # the first line of some tables of Excel, before the header


def read_csv(table: object, content: bytes | None, *keys: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the columns of a table, and its rows with their lines, where missing cells are empty.

    Args:
        table: its file, or its name if there is `content`.
        content: bytes of a file that was uploaded; None: the file is read.
        keys: columns; the separator with which the header has most of them separates the cells.

    Raises:
        InvalidRequest: the table cannot be read, is not text, or has a quote that is not closed.
    """
    try:
        text = _decoded(Path(str(table)).read_bytes() if content is None else content)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{table} is not a CSV file ({error}); save it as CSV in UTF-8.") from error
    before = 0
    if text[:4].lower() == _HINT:
        _, text, before = *text.split("\n", 1), 1
    headers = {separator: _header(text, separator) for separator in SEPARATORS}
    separator = max(SEPARATORS, key=lambda one: (len({*keys} & {*headers[one]}), len(headers[one])))
    columns, rows = headers[separator], list[tuple[int, dict[str, str]]]()
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    first = before + 1
    try:
        next(reader, None)
        first = before + reader.line_num + 1
        for cells in reader:
            if cells:
                cells += [""] * (len(columns) - len(cells))
                rows.append((first, dict(zip(columns, cells, strict=False))))
            first = before + reader.line_num + 1
    except csv.Error as error:
        raise InvalidRequest(
            f"{table} is not a CSV file ({error}, in the row that begins on line {first}); close each quote, and "
            "write a quote inside quotes twice."
        ) from error
    return columns, rows


def find_column(table: object, columns: Sequence[str], chosen: str | None, *defaults: str) -> str | None:
    """Return the column of a table that was chosen, or else the first of the defaults that it has; None: it has none.

    Raises:
        InvalidRequest: the table does not have the chosen column.
    """
    if chosen is not None and chosen not in columns:
        raise InvalidRequest(f"{table} has no column {chosen!r}; it has {listed(columns)}.")
    return chosen if chosen is not None else next((one for one in defaults if one in columns), None)


def listed(columns: Sequence[str]) -> str:
    """Return the names of columns, for a message."""
    return ", ".join(map(repr, columns)) or "no columns"


def name_key(name: str) -> str:
    """Return what is equal for all spellings of a path: with slashes or backslashes, composed or decomposed.

    A file name that is not UTF-8 is read as Windows-1252, which most of them are.
    """
    if not name.isascii():
        if any("\udc80" <= letter <= "\udcff" for letter in name):
            name = name.encode("utf-8", "surrogateescape").decode("cp1252", "replace")
        name = unicodedata.normalize("NFC", name)
    name = name.replace("\\", "/")
    # PurePosixPath takes ten times as long as the check
    return PurePosixPath(name).as_posix() if _IRREGULAR.search(name) else name


def _decoded(data: bytes) -> str:
    for mark, encoding in _MARKS.items():
        if data.startswith(mark):
            return data.decode(encoding)
    if 0 in data[:2]:  # UTF-16 without a mark, whose first letter is ASCII
        return data.decode("utf-16-be" if data[0] == 0 else "utf-16-le")
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")  # tables of this program, with file names that are not UTF-8
        if any("\x80" <= letter < "\udc80" or letter > "\udcff" for letter in text):
            return text
        return data.decode("cp1252", "surrogateescape")


def _header(text: str, separator: str) -> list[str]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        return [name.strip() for name in next(reader, [])]
    except csv.Error:  # reported when the rows are read
        return []
