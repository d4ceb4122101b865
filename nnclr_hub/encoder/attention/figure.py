"""Several images and maps as one figure, as in the paper."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from nnclr_hub.encoder.attention.maps import MADE_BY, OPACITY, AttentionMap
from nnclr_hub.encoder.attention.query import Point, Query

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = 2.4  # inches across
DPI = 160
GAP = 0.06  # inches between cells
TITLE = 0.34  # inches above each row that has titles
QUERY_COLOR = "#ff2d2d"
EMPTY_COLOR = "#f2f2f2"
MAX_TITLE = 30  # characters per line


@dataclass(frozen=True)
class Cell:
    """One cell of a figure.

    image: the image to show; None: only the note.
    title: above the image.
    note: in the middle of an empty cell.
    query: drawn on the image in red; in pixels of the image.
    """

    image: Image.Image | None
    title: str = ""
    note: str = ""
    query: Query | None = None


def query_figure(
    image: Image.Image,
    query: Query | None,
    maps: Sequence[AttentionMap],
    names: Sequence[str],
    opacity: float = OPACITY,
) -> bytes:
    """Draw the image with its query in red, and each map over its own image; return a PNG file.

    Args:
        image: the upright original with the query.
        query: None: the whole image.
        maps: the maps of one call.
        names: titles of the image, and then of each map.
    """
    first = Cell(image, names[0], query=query)
    return draw([[first, *(Cell(one.overlay(opacity), name) for one, name in zip(maps, names[1:], strict=True))]])


def draw(rows: Sequence[Sequence[Cell]]) -> bytes:
    """Draw rows of equally many cells as a PNG file; the highest image of a row sets its height."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    ratios = [max((cell.image.height / cell.image.width for cell in row if cell.image), default=1) for row in rows]
    titles = [TITLE if any(cell.title for cell in row) else 0.0 for row in rows]
    width = len(rows[0]) * (CELL + GAP) + GAP
    height = sum(CELL * ratio + title + GAP for ratio, title in zip(ratios, titles, strict=True)) + GAP
    figure = Figure((width, height), dpi=DPI)
    top = height
    for row, ratio, title in zip(rows, ratios, titles, strict=True):
        top -= title + CELL * ratio + GAP
        for column, cell in enumerate(row):
            left = GAP + column * (CELL + GAP)
            axes = figure.add_axes((left / width, top / height, CELL / width, CELL * ratio / height))
            _draw_cell(axes, cell)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata=dict([MADE_BY]))
    return buffer.getvalue()


def _draw_cell(axes: Axes, cell: Cell) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_frame_on(False)
    axes.set_anchor("N")
    axes.set_title(_wrap(cell.title), fontsize=8.5, pad=4, color="#202020", linespacing=1.05)
    if cell.image is None:
        axes.set_facecolor(EMPTY_COLOR)
        axes.set_frame_on(True)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.text(
            0.5, 0.5, cell.note, ha="center", va="center", fontsize=8.5, color="#707070", transform=axes.transAxes
        )
        return
    width, height = cell.image.size
    axes.imshow(_shrink(cell.image), extent=(0, width, height, 0), interpolation="antialiased", aspect="equal")
    if isinstance(cell.query, Point):
        axes.plot(cell.query.x, cell.query.y, "o", ms=7, mfc=QUERY_COLOR, mec="white", mew=1.4)
    elif cell.query is not None:
        box = cell.query
        corners = [box.x0, box.x1, box.x1, box.x0, box.x0], [box.y0, box.y0, box.y1, box.y1, box.y0]
        axes.plot(*corners, color="white", lw=3.2, solid_joinstyle="miter")
        axes.plot(*corners, color=QUERY_COLOR, lw=1.8, solid_joinstyle="miter")
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)


def _shrink(image: Image.Image) -> Image.Image:
    # twice the pixels of its cell are enough, and keep drawing fast
    most = int(2 * CELL * DPI)
    return image if image.width <= most else image.resize((most, max(1, image.height * most // image.width)))


def _wrap(title: str) -> str:
    """Wrap a long title after a separator into two lines, and cut the second line at its start."""
    if len(title) <= MAX_TITLE:
        return title
    at = max((place + 1 for place in range(MAX_TITLE) if title[place] in " _-./:,"), default=MAX_TITLE)
    rest = title[at:]
    return f"{title[:at]}\n{rest if len(rest) <= MAX_TITLE else '…' + rest[1 - MAX_TITLE :]}"
