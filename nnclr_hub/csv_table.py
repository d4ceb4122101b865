"""CSV tables with a header."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TextIO

from nnclr_hub.errors import InvalidRequest

SEPARATORS = (",", ";", "\t")


def read_csv(table: Path, key: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns of a table, and its rows, where missing cells are empty.

    Args:
        key: a column; the first separator with which the header has it separates the cells.

    Raises:
        InvalidRequest: the table cannot be read, is not in UTF-8, or has a quote that is not closed.
    """
    first = 1
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            separator = next((one for one in SEPARATORS if key in _header(file, one)), ",")
            columns, rows = _header(file, separator), list[dict[str, str]]()
            file.seek(0)
            reader = csv.reader(file, delimiter=separator, strict=True)
            next(reader, None)
            first = reader.line_num + 1
            for cells in reader:
                if cells:
                    rows.append(dict(zip(columns, cells + [""] * (len(columns) - len(cells)), strict=False)))
                first = reader.line_num + 1
    except csv.Error as error:
        raise InvalidRequest(
            f"{table} is not a CSV file ({error}, in the row that begins on line {first}); close each quote, and "
            "write a quote inside quotes twice."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{table} is not a CSV file in UTF-8 ({error}); save it in this format.") from error
    return columns, rows


def _header(file: TextIO, separator: str) -> list[str]:
    """Return the names of the columns, read from the start of the file."""
    file.seek(0)
    return [name.strip() for name in next(csv.reader(file, delimiter=separator), [])]
