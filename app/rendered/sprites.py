"""Kinds of objects: each function draws one object in random shapes and colors on a transparent square.

The square has coordinates from 0 to 1, and the object is near its middle. `scene.place` adds pose and background.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .brush import Brush

Kind = Callable[[Brush], None]


def leaf(b: Brush) -> None:
    width = b.between(0.12, 0.26)
    half = [(0.5 + width * np.sin(np.pi * t) ** b.between(0.8, 1.2), 0.1 + 0.7 * t) for t in np.linspace(0, 1, 20)]
    green = b.color(b.choice([0.2, 0.28, 0.33, 0.09, 0.13]))
    b.polygon([*half, *((1 - x, y) for x, y in reversed(half))], green)
    vein = b.darker(green)
    b.line([(0.5, 0.12), (0.5, 0.95)], vein, 0.02)
    for y in np.arange(0.25, 0.75, b.between(0.08, 0.14)):
        for side in (-1, 1):
            b.line([(0.5, y + 0.08), (0.5 + side * width * 0.7, y - 0.04)], vein, 0.01)


def flower(b: Brush) -> None:
    petals, long, color = b.integer(5, 13), b.between(0.2, 0.3), b.color()
    b.line([(0.5, 0.5), (0.5, 0.98)], b.color(0.33), 0.03)
    for angle in np.linspace(0, 2 * np.pi, petals, endpoint=False):
        x, y = 0.5 + long * np.cos(angle), 0.42 + long * np.sin(angle)
        b.circle(x, y, 1.9 * long / petals + 0.05, color)
    b.circle(0.5, 0.42, long * 0.5, b.color(0.14))


def tree(b: Brush) -> None:
    b.box(0.46, 0.6, 0.54, 0.95, b.color(0.08, 0.5, 0.4))
    green = b.color(b.between(0.22, 0.4), 0.7, b.between(0.35, 0.7))
    if b.chance(0.5):
        for i in range(3):
            width = 0.16 + 0.07 * i
            top = 0.08 + 0.17 * i
            b.polygon([(0.5, top), (0.5 - width, top + 0.28), (0.5 + width, top + 0.28)], green)
    else:
        for _ in range(14):
            b.circle(b.between(0.32, 0.68), b.between(0.2, 0.58), 0.13, b.near(green))


def mushroom(b: Brush) -> None:
    b.box(0.42, 0.45, 0.58, 0.88, (240, 228, 205), radius=0.06)
    cap = b.color(b.choice([0.0, 0.03, 0.07, 0.11]))
    b.pie(0.14, 0.14, 0.86, 0.84, 180, 360, cap)
    for _ in range(b.integer(4, 10)):
        b.circle(b.between(0.28, 0.72), b.between(0.27, 0.45), b.between(0.02, 0.045), (250, 245, 235))


def fish(b: Brush) -> None:
    body, height = b.color(), b.between(0.14, 0.24)
    b.ellipse(0.15, 0.5 - height, 0.72, 0.5 + height, body)
    b.polygon([(0.66, 0.5), (0.92, 0.5 - height), (0.92, 0.5 + height)], b.darker(body))
    for x in np.arange(0.34, 0.64, b.between(0.06, 0.12)):
        b.arc(x - 0.08, 0.5 - height * 0.7, x + 0.08, 0.5 + height * 0.7, 270, 90, b.darker(body), 0.012)
    b.circle(0.25, 0.46, 0.035, (255, 255, 255))
    b.circle(0.245, 0.46, 0.018, (10, 10, 10))


def butterfly(b: Brush) -> None:
    wing, spot = b.color(), b.color()
    for side in (-1, 1):
        b.polygon([(0.5, 0.5), (0.5 + side * 0.4, 0.12), (0.5 + side * 0.44, 0.46)], wing)
        b.polygon([(0.5, 0.5), (0.5 + side * 0.36, 0.56), (0.5 + side * 0.24, 0.86)], b.darker(wing))
        b.circle(0.5 + side * 0.3, 0.33, b.between(0.04, 0.08), spot)
        b.line([(0.5, 0.32), (0.5 + side * 0.09, 0.12)], (30, 25, 20), 0.012)
    b.ellipse(0.47, 0.28, 0.53, 0.78, (40, 30, 25))


def face(b: Brush) -> None:
    skin = b.choice([(255, 224, 189), (241, 194, 125), (198, 134, 66), (141, 85, 36), (90, 56, 37)])
    hair = b.choice([(40, 26, 13), (120, 70, 20), (230, 200, 120), (20, 20, 20), (150, 150, 150)])
    b.ellipse(0.22, 0.08, 0.78, 0.7, hair)
    b.ellipse(0.25, 0.15, 0.75, 0.9, skin)
    gap, mouth = b.between(0.1, 0.14), b.between(0.06, 0.13)
    for side in (-1, 1):
        b.ellipse(0.5 + side * gap - 0.05, 0.42, 0.5 + side * gap + 0.05, 0.49, (255, 255, 255))
        b.circle(0.5 + side * gap, 0.455, 0.025, b.color(b.between(0, 1), 0.7, 0.4))
        b.line([(0.5 + side * (gap - 0.06), 0.38), (0.5 + side * (gap + 0.06), b.between(0.35, 0.39))], hair, 0.02)
    b.line([(0.5, 0.48), (0.48, 0.6), (0.52, 0.6)], b.darker(skin), 0.012)
    b.arc(0.5 - mouth, 0.62, 0.5 + mouth, 0.76, *b.choice([(20, 160), (10, 170), (200, 340)]), (180, 50, 60), 0.022)


def house(b: Brush) -> None:
    wall, roof = b.color(saturation=0.35, value=0.9), b.color(b.choice([0.0, 0.04, 0.6, 0.08]), 0.7, 0.6)
    left, right, top = b.between(0.12, 0.22), b.between(0.78, 0.88), b.between(0.4, 0.5)
    b.box(left, top, right, 0.9, wall)
    b.polygon([(left - 0.06, top), (0.5, b.between(0.1, 0.22)), (right + 0.06, top)], roof)
    b.box(0.44, 0.68, 0.56, 0.9, b.color(0.08, 0.6, 0.4))
    for x in (left + 0.07, right - 0.19):
        b.box(x, top + 0.1, x + 0.12, top + 0.22, (170, 210, 240))
        b.line([(x + 0.06, top + 0.1), (x + 0.06, top + 0.22)], (255, 255, 255), 0.012)


def car(b: Brush) -> None:
    paint = b.color()
    b.box(0.06, 0.48, 0.94, 0.7, paint, radius=0.06)
    slope = b.between(0.04, 0.14)
    b.polygon([(0.2, 0.5), (0.2 + slope, 0.3), (0.72 - slope / 2, 0.3), (0.82, 0.5)], b.darker(paint))
    b.polygon([(0.25, 0.48), (0.25 + slope, 0.34), (0.47, 0.34), (0.47, 0.48)], (190, 220, 240))
    b.polygon([(0.51, 0.48), (0.51, 0.34), (0.7 - slope / 2, 0.34), (0.77, 0.48)], (190, 220, 240))
    for x in (0.26, 0.74):
        b.circle(x, 0.7, 0.11, (25, 25, 28))
        b.circle(x, 0.7, 0.05, (190, 190, 195))


def boat(b: Brush) -> None:
    hull = b.color()
    b.polygon([(0.1, 0.68), (0.9, 0.68), (0.76, 0.86), (0.24, 0.86)], hull)
    b.line([(0.48, 0.68), (0.48, 0.08)], (110, 80, 50), 0.025)
    b.polygon([(0.51, 0.1), (0.51, 0.62), (b.between(0.75, 0.88), 0.62)], b.choice([(250, 250, 245), b.color()]))
    b.polygon([(0.45, 0.2), (0.45, 0.62), (b.between(0.14, 0.26), 0.62)], (235, 235, 230))


def rocket(b: Brush) -> None:
    body, fin = b.color(saturation=0.15, value=0.95), b.color()
    b.polygon([(0.5, 0.05), (0.4, 0.28), (0.6, 0.28)], fin)
    b.box(0.4, 0.28, 0.6, 0.75, body)
    for side in (-1, 1):
        b.polygon([(0.5 + side * 0.1, 0.55), (0.5 + side * 0.24, 0.82), (0.5 + side * 0.1, 0.76)], fin)
    for y in np.linspace(0.36, 0.6, b.integer(1, 4)):
        b.circle(0.5, y, 0.045, (90, 160, 220))
    b.polygon([(0.43, 0.77), (0.57, 0.77), (0.5, b.between(0.86, 0.98))], (255, 170, 30))


def clock(b: Brush) -> None:
    rim = b.color()
    b.circle(0.5, 0.5, 0.42, rim)
    b.circle(0.5, 0.5, 0.36, (250, 248, 240))
    for hour in range(12):
        x, y = np.sin(hour * np.pi / 6), np.cos(hour * np.pi / 6)
        b.line([(0.5 + 0.31 * x, 0.5 + 0.31 * y), (0.5 + 0.34 * x, 0.5 + 0.34 * y)], (30, 30, 30), 0.02)
    for long, width in ((0.2, 0.03), (0.29, 0.018)):
        angle = b.between(0, 2 * np.pi)
        b.line([(0.5, 0.5), (0.5 + long * np.sin(angle), 0.5 - long * np.cos(angle))], (20, 20, 20), width)


def cup(b: Brush) -> None:
    glaze = b.color()
    b.arc(0.62, 0.38, 0.9, 0.7, 250, 110, glaze, 0.05)
    b.polygon([(0.2, 0.3), (0.74, 0.3), (b.between(0.62, 0.72), 0.8), (b.between(0.22, 0.32), 0.8)], glaze)
    b.ellipse(0.2, 0.24, 0.74, 0.36, b.darker(glaze))
    b.ellipse(0.24, 0.26, 0.7, 0.35, (85, 50, 25))
    b.line([(0.3, 0.5), (0.64, 0.5)], b.near(glaze, 60), b.between(0.02, 0.08))


def bottle(b: Brush) -> None:
    glass, width = b.color(b.choice([0.33, 0.3, 0.08, 0.55, 0.6]), 0.6, 0.6), b.between(0.12, 0.2)
    b.box(0.5 - width, 0.38, 0.5 + width, 0.95, glass, radius=0.06)
    b.polygon([(0.5 - width, 0.42), (0.45, 0.28), (0.55, 0.28), (0.5 + width, 0.42)], glass)
    b.box(0.45, 0.1, 0.55, 0.3, glass)
    b.box(0.44, 0.05, 0.56, 0.12, b.color())
    b.box(0.5 - width, 0.55, 0.5 + width, 0.78, (245, 240, 225))
    b.line([(0.5 - width / 2, 0.66), (0.5 + width / 2, 0.66)], b.color(), 0.03)


def umbrella(b: Brush) -> None:
    first, second, panels = b.color(), b.color(), b.integer(4, 9)
    for i in range(panels):
        low, high = 180 + 180 * i / panels, 180 + 180 * (i + 1) / panels
        b.pie(0.08, 0.12, 0.92, 0.96, low, high, (first, second)[i % 2])
    b.line([(0.5, 0.1), (0.5, 0.86)], (60, 45, 30), 0.022)
    b.arc(0.5, 0.8, 0.6, 0.94, 0, 180, (60, 45, 30), 0.022)


def balloon(b: Brush) -> None:
    skin, stripe = b.color(), b.color()
    b.circle(0.5, 0.38, 0.31, skin)
    b.ellipse(0.4, 0.07, 0.6, 0.69, stripe)
    for side in (-1, 1):
        b.line([(0.5 + side * 0.2, 0.61), (0.5 + side * 0.07, 0.82)], (90, 70, 50), 0.012)
    b.box(0.42, 0.82, 0.58, 0.94, b.color(0.09, 0.6, 0.5))


def planet(b: Brush) -> None:
    base = b.color(saturation=b.between(0.2, 0.7))
    b.circle(0.5, 0.5, 0.3, base)
    for y in np.arange(0.26, 0.76, b.between(0.06, 0.12)):
        half = np.sqrt(max(0.0, 0.09 - (y - 0.5) ** 2))
        b.line([(0.5 - half, y), (0.5 + half, y)], b.near(base, 45), b.between(0.02, 0.05))
    if b.chance(0.6):
        b.ring(0.04, 0.4, 0.96, 0.6, b.color(0.1, 0.3, 0.85), 0.025)


def cell(b: Brush) -> None:
    plasma = b.color(b.choice([0.9, 0.85, 0.95, 0.75]), 0.35, 0.95)
    points = [
        (0.5 + r * np.cos(a), 0.5 + r * np.sin(a))
        for a in np.linspace(0, 2 * np.pi, 24, endpoint=False)
        for r in [b.between(0.33, 0.42)]
    ]
    b.polygon(points, plasma, outline=b.darker(plasma))
    x, y = b.between(0.42, 0.58), b.between(0.42, 0.58)
    b.circle(x, y, b.between(0.1, 0.16), b.color(0.76, 0.6, 0.5))
    for _ in range(b.integer(6, 20)):
        b.circle(b.between(0.28, 0.72), b.between(0.28, 0.72), b.between(0.01, 0.03), b.darker(plasma))


def snowflake(b: Brush) -> None:
    color, branches = (
        b.color(b.between(0.5, 0.62), 0.25, 1.0),
        sorted(b.between(0.1, 0.38) for _ in range(b.integer(2, 5))),
    )
    for arm in range(6):
        dx, dy = np.cos(arm * np.pi / 3), np.sin(arm * np.pi / 3)
        b.line([(0.5, 0.5), (0.5 + 0.43 * dx, 0.5 + 0.43 * dy)], color, 0.025)
        for at in branches:
            for turn in (-1, 1):
                ex, ey = np.cos(arm * np.pi / 3 + turn), np.sin(arm * np.pi / 3 + turn)
                start = (0.5 + at * dx, 0.5 + at * dy)
                b.line([start, (start[0] + 0.1 * ex, start[1] + 0.1 * ey)], color, 0.02)


def gear(b: Brush) -> None:
    metal, teeth, deep = b.color(saturation=b.between(0, 0.3), value=0.65), b.integer(8, 17), b.between(0.05, 0.1)
    points = []
    for i in range(teeth):
        for at, radius in ((0.1, 0.33), (0.25, 0.33 + deep), (0.55, 0.33 + deep), (0.7, 0.33)):
            angle = 2 * np.pi * (i + at) / teeth
            points.append((0.5 + radius * np.cos(angle), 0.5 + radius * np.sin(angle)))
    b.polygon(points, metal)
    b.circle(0.5, 0.5, b.between(0.08, 0.2), b.darker(metal))


def star(b: Brush) -> None:
    spikes, inner = b.integer(5, 9), b.between(0.15, 0.25)
    points = [
        (0.5 + r * np.sin(i * np.pi / spikes), 0.5 - r * np.cos(i * np.pi / spikes))
        for i in range(2 * spikes)
        for r in [(0.42, inner)[i % 2]]
    ]
    gold = b.color(b.between(0.1, 0.16))
    b.polygon(points, gold, outline=b.darker(gold))


def dice(b: Brush) -> None:
    face_color, dot = b.choice([((250, 250, 245), (20, 20, 20)), (b.color(), (255, 255, 255))])
    b.box(0.18, 0.18, 0.82, 0.82, face_color, radius=0.1)
    spots = {1: [4], 2: [0, 8], 3: [0, 4, 8], 4: [0, 2, 6, 8], 5: [0, 2, 4, 6, 8], 6: [0, 2, 3, 5, 6, 8]}
    for place in spots[b.integer(1, 7)]:
        b.circle(0.32 + 0.18 * (place % 3), 0.32 + 0.18 * (place // 3), 0.06, dot)


SPRITES: dict[str, Kind] = {
    one.__name__: one
    for one in (
        *(leaf, flower, tree, mushroom, fish, butterfly, face, house, car, boat, rocket, clock, cup, bottle),
        *(umbrella, balloon, planet, cell, snowflake, gear, star, dice),
    )
}
