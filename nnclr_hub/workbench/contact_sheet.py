"""Contact sheets: search results as one HTML page, one PNG, or a CSV table.

write_contact_sheet(Path("contact.html"), [SheetRow("cat.jpg", matches)], collection.thumbnail)

The HTML page is self-contained: thumbnails are embedded, it loads nothing and runs no scripts.
"""

from __future__ import annotations

import base64
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
from nnclr_hub.store.base import Match
from nnclr_hub.store.items import percent_text

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike

SUFFIXES = (".html", ".csv", ".png")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # text that spreadsheets would run as a formula
TILE, TEXT, COLUMNS = 160, 48, 6  # pixels of an image and its caption in the PNG, and images per line
STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .75rem; overflow-wrap: anywhere; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 1rem; }
figure { margin: 0; }
img, .none { width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 6px; background: #8882; }
figcaption { font-size: .85rem; overflow-wrap: anywhere; }
.score { font-variant-numeric: tabular-nums; font-weight: 600; }
.path { opacity: .75; }
"""


@dataclass(frozen=True)
class SheetRow:
    """One query: its title, its matches, best first, and its image if it has one."""

    title: str
    matches: Sequence[Match]
    image: ImageLike | None = None


def check_sheet(path: Path) -> None:
    """Check the name of a contact sheet before the search runs.

    Raises:
        InvalidRequest: if its suffix is not .html, .csv or .png, or its folder does not exist.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidRequest(f"{path} must end in one of {', '.join(SUFFIXES)}.")
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
        reading: of the images of the queries.

    Raises:
        InvalidRequest: if the suffix is unknown or the file cannot be written.
    """
    check_sheet(path)
    kind = path.suffix.lower()
    if kind == ".csv":
        content = _csv(rows).encode()
    else:
        content = _html(rows, thumbnail, reading).encode() if kind == ".html" else _png(rows, thumbnail, reading)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written ({error.strerror}); use another file.") from error


def _html(rows: Sequence[SheetRow], thumbnail: Callable[[str], bytes | None], reading: ImageReading) -> str:
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Search results</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body><h1>Search results</h1>",
    ]
    for row in rows:
        parts.append(f'<h2>{escape(row.title)}</h2><div class="grid">')
        if (jpeg := _query_jpeg(row, reading)) is not None:
            parts.append(f"<figure>{_img(jpeg, row.title)}<figcaption>query</figcaption></figure>")
        for match in row.matches:
            jpeg = _thumbnail(thumbnail, match.id)
            image = '<div class="none"></div>' if jpeg is None else _img(jpeg, _name(match))
            label = escape(str(match.metadata.get("label", "")))
            parts.append(
                f'<figure>{image}<figcaption><span class="score">{escape(_score(match))}</span> {label}<br>'
                f'<span class="path">{escape(_name(match))}</span></figcaption></figure>'
            )
        parts.append("</div>" if row.matches else "</div><p>No matches.</p>")
    return "\n".join([*parts, "</body></html>\n"])


def _csv(rows: Sequence[SheetRow]) -> str:
    keys = sorted({key for row in rows for match in row.matches for key in match.metadata})
    file = io.StringIO()
    table = csv.writer(file)
    columns = ["query", "rank", "id", "score", *map(_cell, keys)]
    known = any(match.percentile is not None for row in rows for match in row.matches)
    last = "percentile"
    while last in columns:  # a metadata key of that name
        last += "_"
    table.writerow([*columns, *([last] if known else [])])
    for row in rows:
        for rank, match in enumerate(row.matches, 1):
            metadata = (_cell(match.metadata.get(key, "")) for key in keys)
            share = ["" if match.percentile is None else f"{match.percentile:.4f}"] if known else []
            table.writerow([_cell(row.title), rank, _cell(match.id), f"{match.score:.6f}", *metadata, *share])
    return file.getvalue()


def _png(rows: Sequence[SheetRow], thumbnail: Callable[[str], bytes | None], reading: ImageReading) -> bytes:
    from PIL import Image, ImageDraw

    lines: list[tuple[str, list[tuple[bytes | None, str]]]] = []
    for row in rows:
        query = _query_jpeg(row, reading)
        tiles: list[tuple[bytes | None, str]] = [] if query is None else [(query, "query")]
        for match in row.matches:
            label = str(match.metadata.get("label", ""))
            caption = f"{_score(match)}\n{_ascii(label)[:24]}\n{_ascii(_name(match))[-24:]}"
            tiles.append((_thumbnail(thumbnail, match.id), caption))
        lines.append((row.title, tiles))
    heights = [TEXT + -(-len(tiles) // COLUMNS) * (TILE + TEXT) for _, tiles in lines]
    sheet = Image.new("RGB", (COLUMNS * TILE, sum(heights)), "white")
    draw, top = ImageDraw.Draw(sheet), 0
    for (title, tiles), height in zip(lines, heights, strict=True):
        draw.text((4, top + 8), _ascii(title)[:120], fill="black")
        for i, (jpeg, caption) in enumerate(tiles):
            left, upper = i % COLUMNS * TILE, top + TEXT + i // COLUMNS * (TILE + TEXT)
            if jpeg is not None:
                image = Image.open(io.BytesIO(jpeg)).convert("RGB")
                image.thumbnail((TILE - 8, TILE - 8))
                sheet.paste(image, (left + (TILE - image.width) // 2, upper + (TILE - image.height) // 2))
            draw.multiline_text((left + 4, upper + TILE), caption, fill="black")
        top += height
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _img(jpeg: bytes, alt: str) -> str:
    return f'<img alt="{escape(alt)}" src="data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}">'


def _query_jpeg(row: SheetRow, reading: ImageReading) -> bytes | None:
    """Return the image of a query as a small JPEG; None for an item or a vector."""
    from nnclr_hub.encoder.inputs import as_source
    from nnclr_hub.images.decode import decode_any
    from nnclr_hub.workbench.image_record import make_thumbnail

    return None if row.image is None else make_thumbnail(decode_any(as_source(row.image), reading))


def _thumbnail(thumbnail: Callable[[str], bytes | None], id: str) -> bytes | None:
    """Return the thumbnail; None if there is none, or the item was deleted since the search."""
    try:
        return thumbnail(id)
    except ItemNotFound:
        return None


def _score(match: Match) -> str:
    percentile = percent_text(match.percentile)
    return f"{match.score:.4f} ({percentile})" if percentile else f"{match.score:.4f}"


def _name(match: Match) -> str:
    box = match.metadata.get("box")  # of a tile
    part = f"#{','.join(map(str, box))}" if isinstance(box, list) else ""
    return f"{match.metadata.get('path', match.id)}{part}"


def _ascii(text: str) -> str:
    """Return text that the built-in font of Pillow can draw."""
    return text.encode("ascii", "replace").decode()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value if value.startswith(FORMULA) else value
    return json.dumps(value)
