"""Several images side by side as one figure, as the paper shows its maps."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from nnclr_hub.encoder.attention.maps import MADE_BY, OPACITY, AttentionMap
from nnclr_hub.encoder.attention.queries import Point, Query

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = 2.4  # inches across
DOTS = 160  # an inch
GAP = 0.06  # inches between cells
TITLE = 0.34  # inches above each row that has titles
MARK = "#ff2d2d"
PALE = "#f2f2f2"


@dataclass(frozen=True)
class Cell:
    """One place in a figure.

    image: what is shown; None: only the note.
    title: above it.
    note: in the middle of an empty cell.
    query: drawn onto it in red; in pixels of the image.
    """

    picture: Image.Image | None
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
    """The image with its query in red, and each map over its own image: a PNG file.

    Args:
        image: the upright original that the query is in.
        query: drawn in red; None: the image as a whole.
        maps: of one call.
        names: of the image, and then of each map.
        opacity: of the maps.
    """
    first = Cell(image, names[0], query=query)
    return draw([[first, *(Cell(one.overlay(opacity), name) for one, name in zip(maps, names[1:], strict=True))]])


def draw(rows: Sequence[Sequence[Cell]]) -> bytes:
    """Rows of equally many cells as a PNG file; a row is as high as its highest image."""
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    ratios = [
        max((cell.picture.height / cell.picture.width for cell in row if cell.picture), default=1) for row in rows
    ]
    titles = [TITLE if any(cell.title for cell in row) else 0.0 for row in rows]
    across = len(rows[0]) * (CELL + GAP) + GAP
    down = sum(CELL * ratio + title + GAP for ratio, title in zip(ratios, titles, strict=True)) + GAP
    figure = Figure((across, down), dpi=DOTS)
    top = down
    for row, ratio, title in zip(rows, ratios, titles, strict=True):
        top -= title + CELL * ratio + GAP
        for column, cell in enumerate(row):
            left = GAP + column * (CELL + GAP)
            axes = figure.add_axes((left / across, top / down, CELL / across, CELL * ratio / down))
            _draw_cell(axes, cell)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white", metadata=dict([MADE_BY]))
    return buffer.getvalue()


def _draw_cell(axes: Axes, cell: Cell) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_frame_on(False)
    axes.set_anchor("N")
    axes.set_title(_short(cell.title), fontsize=8.5, pad=4, color="#202020", linespacing=1.05)
    if cell.picture is None:
        axes.set_facecolor(PALE)
        axes.set_frame_on(True)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.text(
            0.5, 0.5, cell.note, ha="center", va="center", fontsize=8.5, color="#707070", transform=axes.transAxes
        )
        return
    width, height = cell.picture.size
    axes.imshow(_shrunk(cell.picture), extent=(0, width, height, 0), interpolation="antialiased", aspect="equal")
    if isinstance(cell.query, Point):
        axes.plot(cell.query.x, cell.query.y, "o", ms=7, mfc=MARK, mec="white", mew=1.4)
    elif cell.query is not None:
        box = cell.query
        corners = [box.x0, box.x1, box.x1, box.x0, box.x0], [box.y0, box.y0, box.y1, box.y1, box.y0]
        axes.plot(*corners, color="white", lw=3.2, solid_joinstyle="miter")
        axes.plot(*corners, color=MARK, lw=1.8, solid_joinstyle="miter")
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)


def _shrunk(picture: Image.Image) -> Image.Image:
    """No more pixels than the figure has, twice over."""
    most = int(2 * CELL * DOTS)
    return picture if picture.width <= most else picture.resize((most, max(1, picture.height * most // picture.width)))


def _short(title: str, most: int = 30) -> str:
    """On two lines where it is longer than one, broken behind a mark; cut where it is longer than both."""
    if len(title) <= most:
        return title
    at = max((place + 1 for place in range(most) if title[place] in " _-./:,"), default=most)
    rest = title[at:]
    return f"{title[:at]}\n{rest if len(rest) <= most else '…' + rest[1 - most :]}"
