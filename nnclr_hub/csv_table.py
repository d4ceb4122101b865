"""CSV tables with a header."""

from __future__ import annotations

import csv
from pathlib import Path

from nnclr_hub.errors import InvalidRequest

SEPARATORS = (",", ";", "\t")


def read_csv(table: Path, key: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns of a table, and its rows, where missing cells are empty.

    Args:
        key: a column; the first separator with which the header has it separates the cells.

    Raises:
        InvalidRequest: the table cannot be read, is not in UTF-8, or has a quote that is not closed.
    """
    first = 2
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            header = file.readline()
            names = {
                one: [name.strip() for name in next(csv.reader([header], delimiter=one), [])] for one in SEPARATORS
            }
            separator = next((one for one in SEPARATORS if key in names[one]), ",")
            columns, reader, rows = names[separator], csv.reader(file, delimiter=separator, strict=True), []
            for cells in reader:
                if cells:
                    rows.append(dict(zip(columns, cells + [""] * (len(columns) - len(cells)), strict=False)))
                first = reader.line_num + 2
    except csv.Error as error:
        raise InvalidRequest(
            f"{table} is not a CSV file ({error}, in the row that begins on line {first}); close each quote, and "
            "write a quote inside quotes twice."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{table} is not a CSV file in UTF-8 ({error}); save it in this format.") from error
    return columns, rows
