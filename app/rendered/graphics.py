"""Kinds of graphics that fill the whole image: flags, plots, mazes, writing."""

from __future__ import annotations

import numpy as np

from .brush import Brush

PAPER = (250, 248, 242)
INK = (35, 35, 40)


def flag(b: Brush) -> None:
    colors, bands = [b.color() for _ in range(3)], b.integer(2, 4)
    for i in range(bands):
        low, high = i / bands, (i + 1) / bands
        if bands == 2 or b.size % 2:
            b.box(0, low, 1, high, colors[i])
        else:
            b.box(low, 0, high, 1, colors[i])
    if b.chance(0.5):
        b.polygon([(0, 0), (b.between(0.3, 0.5), 0.5), (0, 1)], b.color())
    if b.chance(0.5):
        b.circle(0.5, 0.5, b.between(0.1, 0.2), b.color())


def lines(b: Brush) -> None:
    _axes(b)
    for _ in range(b.integer(1, 5)):
        y = b.between(0.3, 0.7) + np.cumsum(b.rng.normal(0, 0.035, 24))
        b.line(
            [(float(x), float(v)) for x, v in zip(np.linspace(0.15, 0.95, 24), np.clip(y, 0.08, 0.85), strict=True)],
            b.color(),
            0.015,
        )


def bars(b: Brush) -> None:
    _axes(b)
    count, color = b.integer(4, 11), b.color()
    width = 0.8 / count
    for i in range(count):
        b.box(0.15 + i * width, b.between(0.12, 0.75), 0.15 + (i + 0.75) * width, 0.87, color)


def dots(b: Brush) -> None:
    _axes(b)
    for _ in range(b.integer(2, 5)):
        x, y, color = b.between(0.25, 0.85), b.between(0.2, 0.75), b.color()
        for dx, dy in b.rng.normal(0, 0.06, (22, 2)):
            b.circle(x + dx, y + dy, 0.014, color)


def shares(b: Brush) -> None:
    start = b.between(0, 360)
    for share in b.rng.dirichlet(np.full(b.integer(3, 8), 2.0)):
        b.pie(0.1, 0.1, 0.9, 0.9, start, start + 360 * share, b.color())
        start += 360 * share
    if b.chance(0.4):
        b.circle(0.5, 0.5, 0.2, PAPER)


def maze(b: Brush) -> None:
    cells = b.integer(8, 15)
    seen, path = {(0, 0)}, [(0, 0)]
    side = 0.92 / cells

    def center(at: tuple[int, int]) -> tuple[float, float]:
        return 0.04 + (at[0] + 0.5) * side, 0.04 + (at[1] + 0.5) * side

    b.box(0, 0, 1, 1, INK)
    floor = b.choice([PAPER, b.color(saturation=0.25, value=0.95)])
    while path:
        x, y = path[-1]
        free = [(x + dx, y + dy) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]
        free = [one for one in free if one not in seen and min(one) >= 0 and max(one) < cells]
        if not free:
            path.pop()
            continue
        following = b.choice(free)
        b.line([center((x, y)), center(following)], floor, 0.55 * side)
        for at in (center((x, y)), center(following)):
            b.box(at[0] - 0.27 * side, at[1] - 0.27 * side, at[0] + 0.27 * side, at[1] + 0.27 * side, floor)
        seen.add(following)
        path.append(following)


def glyphs(b: Brush) -> None:
    rows, ink = b.integer(4, 8), b.choice([INK, b.color(value=0.4)])
    strokes = [b.rng.random((b.integer(2, 5), 2)) for _ in range(8)]  # the letters of this script
    high = 0.88 / rows
    for row in range(rows):
        x = 0.06
        while x < 0.9 - 0.3 * (row == rows - 1):
            letter = b.choice(strokes)
            b.line([(x + 0.6 * high * px, 0.07 + (row + 0.7 * py) * high) for px, py in letter], ink, 0.018)
            x += high * b.choice([0.75, 0.75, 0.75, 1.2])


def board(b: Brush) -> None:
    cells, first, second = b.integer(4, 9), b.color(saturation=0.3, value=0.9), b.color(value=0.45)
    for row in range(cells):
        for column in range(cells):
            b.box(
                column / cells,
                row / cells,
                (column + 1) / cells,
                (row + 1) / cells,
                (first, second)[(row + column) % 2],
            )
    for _ in range(b.integer(0, 8)):
        x, y = b.integer(0, cells) + 0.5, b.integer(0, cells) + 0.5
        b.circle(x / cells, y / cells, 0.35 / cells, b.choice([PAPER, INK]))


def barcode(b: Brush) -> None:
    x = 0.08
    while x < 0.9:
        width = b.choice([0.008, 0.016, 0.024])
        b.box(x, 0.15, min(x + width, 0.92), 0.78, INK)
        x += width + b.choice([0.01, 0.018, 0.028])
    for i in range(10):
        b.box(0.1 + 0.08 * i, 0.83, 0.15 + 0.08 * i, 0.9, INK)


def contours(b: Brush) -> None:
    from .textures import noise

    height, color = noise(b.rng, 40, b.integer(2, 4), 2), b.color(b.choice([0.07, 0.3, 0.6]), 0.7, 0.5)
    for level in np.linspace(0.1, 0.9, b.integer(5, 10)):
        inside = height > level
        edge = (inside[1:, 1:] != inside[:-1, 1:]) | (inside[1:, 1:] != inside[1:, :-1])
        for y, x in np.argwhere(edge):
            b.circle((x + 1) / 40, (y + 1) / 40, 0.009, color)


def _axes(b: Brush) -> None:
    b.line([(0.12, 0.06), (0.12, 0.88), (0.96, 0.88)], INK, 0.012)
    for y in np.linspace(0.2, 0.75, b.integer(3, 6)):
        b.line([(0.12, y), (0.96, y)], (215, 215, 215), 0.006)


GRAPHICS = {one.__name__: one for one in (flag, lines, bars, dots, shares, maze, glyphs, board, barcode, contours)}
