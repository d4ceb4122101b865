"""OUT/attention.md and OUT/attention.png: every score of the attention protocol with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..results import Record
from .maps import BASELINES
from .scoring import METRICS, PARTS

SHOWN = {"pointing": "pointing game (share)", "auroc": "AUROC of pixels"}
MARKERS = "osD^v*"


@dataclass(frozen=True)
class Row:
    """One source at one size; `values` by "within/pointing", "within/pointing/low", ..."""

    source: str
    size: str
    values: Mapping[str, float]


def rows_of(records: Sequence[Record], data: str) -> list[Row]:
    """Return the rows of a data set; a baseline, which does not depend on the size, has one row."""
    rows = []
    for one in records:
        if one.data != data:
            continue
        start = f"attention/{data}/"
        named = {key.removeprefix(start): value for key, value in one.values.items() if key.startswith(start)}
        sizes = list(dict.fromkeys(key.split("/")[0] for key in named if "/" in key))
        for size in sizes[:1] if one.source in BASELINES else sizes:
            own = {key.removeprefix(f"{size}/"): value for key, value in named.items() if key.startswith(f"{size}/")}
            rows.append(Row(one.source, "-" if one.source in BASELINES else size, own))
    return rows


def as_markdown(records: Sequence[Record]) -> str:
    """Return a table of scores and a table of differences for each data set."""
    lines = ["# Attention, scored with boxes", "", "In brackets: 95% intervals from a bootstrap over images."]
    for data in dict.fromkeys(one.data for one in records):
        first = next(one for one in records if one.data == data)
        counted = ", ".join(f"{number} {what}" for what, number in first.images.items())
        counts = {key: f"{first.values[f'attention/{data}/{key}']:.0f}" for key in ("pairs", "classes", "covered")}
        rows = rows_of(records, data)
        lines += ["", f"## {data}", "", f"{counted}; {counts['pairs']} pairs, classes: {counts['classes']}.", ""]
        if counts["covered"] != "0":
            lines[-1:] = [f"Boxes cover {counts['covered']} images completely; those have no AUROC.", ""]
        lines += _table(rows, [f"{part}/{metric}" for part in PARTS for metric in METRICS])
        over = [f"{part}/{metric}/over" for part in PARTS[:2] for metric in METRICS]
        over += [f"across/{metric}/over_control" for metric in METRICS]
        if any(key in row.values for row in rows for key in over):
            lines += ["", "Gain over the Gaussian, and of across over the control, on the same images or pairs:", ""]
            lines += _table([row for row in rows if row.source not in BASELINES], over)
    return "\n".join([*lines, *_notes(records)]) + "\n"


def _table(rows: Sequence[Row], keys: Sequence[str]) -> Iterator[str]:
    keys = [key for key in keys if any(key in row.values for row in rows)]
    yield f"| source | short side | {' | '.join(_heading(key) for key in keys)} |"
    yield f"|---|---|{'---|' * len(keys)}"
    for row in rows:
        signed = "+" if any("/over" in key for key in keys) else ""
        yield f"| {row.source} | {row.size} | {' | '.join(_cell(row.values, key, signed) for key in keys)} |"


def _heading(key: str) -> str:
    part, metric, *over = key.split("/")
    against = {"over": " above Gaussian", "over_control": " above control"}[over[0]] if over else ""
    return f"{part}: {metric.replace('auroc', 'AUROC')}{against}"


def _cell(values: Mapping[str, float], key: str, signed: str) -> str:
    if key not in values:
        return ""
    mean, low, high = (format(values[name], f"{signed}.3f") for name in (key, f"{key}/low", f"{key}/high"))
    return f"{mean} [{low}, {high}]"


def _notes(records: Sequence[Record]) -> Iterator[str]:
    """Yield notes about sources."""
    idle = {one.source: one.values.get(f"attention/{one.data}/idle_blocks", 0.0) for one in records}
    for source, share in idle.items():
        if share:
            yield ""
            yield (
                f"{source}: the last norm of {share:.0%} of its residual blocks has weight 0, as timm initializes it; "
                "these blocks equal their shortcuts."
            )


def draw(records: Sequence[Record]) -> Figure:
    """Draw a row of panels per data set and a panel per metric; colors are sources, markers sizes, bars intervals."""
    sets = list(dict.fromkeys(one.data for one in records))
    sources = list(dict.fromkeys(one.source for one in records))
    figure = Figure(figsize=(12, 2.9 * len(sets) + 0.9), layout="constrained")
    panels = figure.subplots(len(sets), len(METRICS), squeeze=False)
    for line, data in zip(panels, sets, strict=True):
        rows = rows_of(records, data)
        for axes, metric in zip(line, METRICS, strict=True):
            _panel(axes, rows, sources, metric)
            axes.set_title(data, fontsize=10)
    found = {name: mark for axes in panels.flat for mark, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(list(found.values()), list(found), loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _panel(axes: Axes, rows: Sequence[Row], sources: Sequence[str], metric: str) -> None:
    parts = [part for part in PARTS if any(f"{part}/{metric}" in row.values for row in rows)]
    sizes = list(dict.fromkeys(row.size for row in rows if row.source not in BASELINES))
    for number, row in enumerate(rows):
        for place, part in enumerate(parts):
            key = f"{part}/{metric}"
            if key not in row.values:
                continue
            mean = row.values[key]
            spread = [[mean - row.values[f"{key}/low"]], [row.values[f"{key}/high"] - mean]]
            axes.errorbar(
                place + (number - (len(rows) - 1) / 2) * 0.8 / len(rows),
                mean,
                [[max(0.0, one) for one in side] for side in spread],
                fmt="_" if row.source in BASELINES else MARKERS[sizes.index(row.size) % len(MARKERS)],
                color=f"C{sources.index(row.source)}",
                capsize=3,
                markersize=6,
                label=row.source if row.source in BASELINES else f"{row.source}, short side {row.size}",
            )
    axes.set_xticks(range(len(parts)), parts)
    axes.set_xlim(-0.5, len(parts) - 0.5)
    axes.set_ylabel(SHOWN[metric])
    axes.set_ylim(0, 1.02)
    if metric == "auroc":
        axes.axhline(0.5, color="gray", linewidth=0.7, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
