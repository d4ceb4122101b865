"""Plots of results: bars per protocol, and few-shot curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .results import EvaluationRecord

WIDE = 44  # characters of a name


def draw(records: Sequence[EvaluationRecord], folder: Path) -> list[Path]:
    """Write folder/scores.png, and few_shot.png if there are such records; return their paths."""
    pages = []
    bars = [one for one in records if one.protocol != "few_shot"]
    if bars:
        pages.append(_save(_scores(bars), folder / "scores.png"))
    curves = [one for one in records if one.protocol == "few_shot"]
    if curves:
        pages.append(_save(_few_shot(curves), folder / "few_shot.png"))
    return pages


def _scores(records: Sequence[EvaluationRecord]) -> Figure:
    """Draw a panel per protocol, a group of bars per data set, and a bar per source."""
    protocols = list(dict.fromkeys(one.protocol for one in records))
    sources = list(dict.fromkeys(one.source for one in records))
    sets = max(len({one.data for one in records if one.protocol == name}) for name in protocols)
    figure = Figure(figsize=(2.5 + 0.35 * sets * len(sources), 2.6 * len(protocols) + 0.6), layout="constrained")
    panels = figure.subplots(len(protocols), squeeze=False)[:, 0]
    for axes, name in zip(panels, protocols, strict=True):
        data = list(dict.fromkeys(one.data for one in records if one.protocol == name))
        width = 0.8 / len(sources)
        for number, source in enumerate(sources):
            found = {one.data: 100 * one.main for one in records if (one.protocol, one.source) == (name, source)}
            places = [data.index(one) + (number - (len(sources) - 1) / 2) * width for one in found]
            bars = axes.bar(places, list(found.values()), width, label=short(source))
            axes.bar_label(bars, fmt="%.0f", fontsize=7)
        axes.set_xticks(range(len(data)), data)
        axes.set_ylabel(f"{name} (%)")
        axes.set_ylim(0, 105)
        axes.spines[["top", "right"]].set_visible(False)
    _legend(figure, panels[0])
    return figure


def _few_shot(records: Sequence[EvaluationRecord]) -> Figure:
    """Draw accuracy against labels per class: a panel per data set, a line per source, one standard deviation."""
    data = list(dict.fromkeys(one.data for one in records))
    columns = min(2, len(data))
    rows = -(-len(data) // columns)
    figure = Figure(figsize=(4.2 * columns, 3 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(data) :]:
        axes.set_visible(False)
    for axes, name in zip(panels, data, strict=False):
        for number, record in enumerate(one for one in records if one.data == name):
            points = {int(k.split("/")[2]): 100 * v for k, v in record.values.items() if not k.endswith("/std")}
            spread = [100 * v for k, v in record.values.items() if k.endswith("/std")]
            x, y = list(points), list(points.values())
            axes.plot(x, y, "o-", markersize=3, color=f"C{number}", label=short(record.source))
            low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=f"C{number}", alpha=0.15)
        axes.set_xscale("log")
        shots = sorted({int(k.split("/")[2]) for one in records if one.data == name for k in one.values})
        axes.set_xticks(shots, [str(n) for n in shots])
        axes.minorticks_off()
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("labels per class")
        axes.set_ylabel("accuracy (%)")
        axes.grid(alpha=0.3)
    _legend(figure, panels[0])
    return figure


def short(source: str) -> str:
    """Shorten a source for the legend: its beginning shows the kind of source, its end which one."""
    return source if len(source) <= WIDE else f"{source[:16]}...{source[-24:]}"


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > WIDE // 2 else min(3, len(labels))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=8)


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    return path
