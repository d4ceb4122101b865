"""Contact sheets: search results as one HTML page, one PNG, or a CSV table.

write_contact_sheet(Path("contact.html"), [SheetRow("cat.jpg", matches)], collection.thumbnail)

The HTML page is self-contained: thumbnails are embedded, it loads nothing and runs no scripts.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
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


@dataclass(frozen=True)
class _Tile:
    """An image of a sheet, as a JPEG; score and label are empty for a query."""

    jpeg: bytes | None
    name: str
    score: str = ""
    label: str = ""


def check_sheet(path: Path) -> None:
    """Check the name of a contact sheet before the search runs."""
    if path.suffix.lower() not in (".html", ".csv", ".png"):
        raise InvalidRequest(f"{path} must end in one of .html, .csv, .png.")
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
    if path.suffix.lower() == ".csv":
        content = _csv(rows).encode()
    else:
        lines = [(row.title, list(_tiles(row, thumbnail, reading))) for row in rows]
        content = _html(lines).encode() if path.suffix.lower() == ".html" else _png(lines)
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written ({error.strerror}); use another file.") from error


def _tiles(row: SheetRow, thumbnail: Callable[[str], bytes | None], reading: ImageReading) -> Iterator[_Tile]:
    if row.image is not None:
        from nnclr_hub.encoder.inputs import as_source
        from nnclr_hub.images.decode import decode_any
        from nnclr_hub.workbench.image_record import make_thumbnail

        yield _Tile(make_thumbnail(decode_any(as_source(row.image), reading)), "query")
    for match in row.matches:
        try:
            jpeg = thumbnail(match.id)
        except ItemNotFound:  # deleted since the search
            jpeg = None
        box = match.metadata.get("box")  # of a tile
        part = f"#{','.join(map(str, box))}" if isinstance(box, list) else ""
        percentile = percent_text(match.percentile)
        score = f"{match.score:.4f} ({percentile})" if percentile else f"{match.score:.4f}"
        yield _Tile(jpeg, f"{match.metadata.get('path', match.id)}{part}", score, str(match.metadata.get("label", "")))


def _html(lines: Sequence[tuple[str, list[_Tile]]]) -> str:
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Search results</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body><h1>Search results</h1>",
    ]
    for title, tiles in lines:
        parts.append(f'<h2>{escape(title)}</h2><div class="grid">')
        for tile in tiles:
            name, image = escape(tile.name), '<div class="none"></div>'
            if tile.jpeg is not None:
                data = base64.b64encode(tile.jpeg).decode()
                image = f'<img alt="{name if tile.score else escape(title)}" src="data:image/jpeg;base64,{data}">'
            caption = name
            if tile.score:
                caption = f'<span class="score">{escape(tile.score)}</span> {escape(tile.label)}<br>'
                caption += f'<span class="path">{name}</span>'
            parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
        parts.append("</div>" if any(tile.score for tile in tiles) else "</div><p>No matches.</p>")
    return "\n".join([*parts, "</body></html>\n"])


def _png(lines: Sequence[tuple[str, list[_Tile]]]) -> bytes:
    from PIL import Image, ImageDraw

    heights = [TEXT + -(-len(tiles) // COLUMNS) * (TILE + TEXT) for _, tiles in lines]
    sheet = Image.new("RGB", (COLUMNS * TILE, sum(heights)), "white")
    draw, top = ImageDraw.Draw(sheet), 0
    for (title, tiles), height in zip(lines, heights, strict=True):
        draw.text((4, top + 8), _ascii(title)[:120], fill="black")
        for i, tile in enumerate(tiles):
            left, upper = i % COLUMNS * TILE, top + TEXT + i // COLUMNS * (TILE + TEXT)
            if tile.jpeg is not None:
                image = Image.open(io.BytesIO(tile.jpeg)).convert("RGB")
                image.thumbnail((TILE - 8, TILE - 8))
                sheet.paste(image, (left + (TILE - image.width) // 2, upper + (TILE - image.height) // 2))
            caption = [tile.score, _ascii(tile.label)[:24], _ascii(tile.name)[-24:]] if tile.score else [tile.name]
            draw.multiline_text((left + 4, upper + TILE), "\n".join(caption), fill="black")
        top += height
    sheet.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


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


def _ascii(text: str) -> str:
    """Return text that the built-in font of Pillow can draw."""
    return text.encode("ascii", "replace").decode()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value if value.startswith(FORMULA) else value
    return json.dumps(value)
