"""Contact sheets: search results as one HTML page that loads nothing and runs no scripts, or as a CSV table.

write_contact_sheet(Path("contact.html"), [SheetRow("cat.jpg", matches)], collection.thumbnail)
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.errors import InvalidRequest, ItemNotFound
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.report_page import report_page, tile
from nnclr_hub.store.base import Match
from nnclr_hub.store.items import percent_text

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # text that spreadsheets would run as a formula


@dataclass(frozen=True)
class SheetRow:
    """One query: its title, its matches, best first, and its image if it has one."""

    title: str
    matches: Sequence[Match]
    image: ImageLike | None = None


def check_sheet(path: Path) -> None:
    """Check the name of a contact sheet before the search runs."""
    if path.suffix.lower() not in (".html", ".csv"):
        raise InvalidRequest(f"{path} must end in .html or .csv.")
    if not path.parent.is_dir():
        raise InvalidRequest(f"{path} cannot be written, because the folder {path.parent} does not exist.")


def write_contact_sheet(
    path: Path,
    rows: Sequence[SheetRow],
    thumbnail: Callable[[str], bytes | None],
    reading: ImageReading = PLAIN,
) -> None:
    """Write search results to a file; its suffix selects the format.

    Args:
        thumbnail: returns the JPEG of an item by its id, or None.
        reading: page and channels of the images of the queries.

    Raises:
        InvalidRequest: if the suffix is unknown or the file cannot be written.
    """
    check_sheet(path)
    text = _csv(rows) if path.suffix.lower() == ".csv" else _html(rows, thumbnail, reading)
    try:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))  # as names of files are
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written ({error.strerror}); use another file.") from error


def _html(rows: Sequence[SheetRow], thumbnail: Callable[[str], bytes | None], reading: ImageReading) -> str:
    parts = []
    for row in rows:
        parts.append(f'<h2>{escape(row.title)}</h2><div class="sheet">')
        if row.image is not None:
            from nnclr_hub.encoder.preprocessing import as_source
            from nnclr_hub.images.decode import decode_any
            from nnclr_hub.workbench.image_record import make_thumbnail

            jpeg = make_thumbnail(decode_any(as_source(row.image), reading))
            parts.append(tile(row.title, jpeg, "query"))
        for match in row.matches:
            try:
                jpeg = thumbnail(match.id)
            except ItemNotFound:  # deleted since the search
                jpeg = None
            box = match.metadata.get("box")  # a tile has one
            part = f"#{','.join(map(str, box))}" if isinstance(box, list) else ""
            name, label = f"{match.metadata.get('path', match.id)}{part}", match.metadata.get("label", "")
            percentile = percent_text(match.percentile)
            score = f"{match.score:.4f} ({percentile})" if percentile else f"{match.score:.4f}"
            parts.append(tile(name, jpeg, f"{score} {label}".strip()))
        parts.append("</div>" if row.matches else "</div><p>No matches.</p>")
    return report_page("Search results", "\n".join(parts))


def _csv(rows: Sequence[SheetRow]) -> str:
    keys = sorted({key for row in rows for match in row.matches for key in match.metadata})
    columns = ["query", "rank", "id", "score", *map(_cell, keys)]
    known = any(match.percentile is not None for row in rows for match in row.matches)
    last = "percentile"
    while last in columns:  # a metadata key of that name
        last += "_"
    table = csv.writer(file := io.StringIO())
    table.writerow([*columns, *([last] if known else [])])
    for row in rows:
        for rank, match in enumerate(row.matches, 1):
            metadata = (_cell(match.metadata.get(key, "")) for key in keys)
            share = ["" if match.percentile is None else f"{match.percentile:.4f}"] if known else []
            table.writerow([_cell(row.title), rank, _cell(match.id), f"{match.score:.6f}", *metadata, *share])
    return file.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value if value.startswith(FORMULA) else value
    return json.dumps(value)
