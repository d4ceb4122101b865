"""The curves of a report, drawn by matplotlib as inline images."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Log = Sequence[Mapping[str, Any]]
STYLES = ("-", "--", ":", "-.")
# left, bottom, width and height of a plot within its image: computing them takes as long as drawing
WITHIN = (0.15, 0.16, 0.82, 0.76)


@dataclass(frozen=True)
class Panel:
    """One plot.

    title: above it.
    names: logged names to draw, or prefixes of names.
    hint: what to look for, below it.
    """

    title: str
    names: tuple[str, ...]
    hint: str


PANELS = (
    Panel("Loss", ("loss",), "falls; steps up when neighbors become positives"),
    Panel("20-NN accuracy", ("knn",), "the exported encoder on held-out images"),
    Panel("Linear accuracy", ("linear/",), "a quick linear classifier on the same features"),
    Panel("Neighbor accuracy", ("nn_accuracy",), "share of neighbors of the query's class; the paper ends near 0.57"),
    Panel("Neighbors in use", ("neighbor_share",), "share of the batch whose positive is its neighbor"),
    Panel("Neighbor similarity", ("nn_similarity",), "stays below 1"),
    Panel("Self-match rate", ("self_match_rate",), "how often the nearest row was the image's own older embedding"),
    Panel("Age of the neighbor (steps)", ("nn_age",), "about half the queue's length in steps"),
    Panel("Distinct neighbors in a batch", ("nn_distinct",), "near 1; 0 is collapse"),
    Panel("Support set filled", ("queue_fill",), "1 after the first steps"),
    Panel("Spread of the projections", ("z_std",), "near 1; 0 is collapse"),
    Panel("RankMe", ("rankme",), "effective dimensions of the projections"),
    Panel("Learning rate", ("lr",), "warm-up, then cosine"),
    Panel("Images per second", ("images_per_s",), ""),
    Panel("Waiting for data", ("data_wait",), "share of the time spent making the views"),
    Panel("Peak memory (MiB)", ("peak_memory_mb",), ""),
)


def draw_panels(logs: Mapping[str, Log]) -> str:
    """Return all panels for which the runs have data, as HTML figures.

    Args:
        logs: name of the run -> its log; several runs share each panel, one color per run.
    """
    return "".join(_draw(logs, panel) for panel in PANELS)


def _draw(logs: Mapping[str, Log], panel: Panel) -> str:
    keys = sorted({key for log in logs.values() for line in log for key in line if key.startswith(panel.names)})
    if not keys:
        return ""
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    figure = Figure(figsize=(4.4, 2.9))
    axes = figure.add_axes(WITHIN)
    for number, (run, log) in enumerate(logs.items()):
        for style, key in enumerate(keys):
            points = [(line["epoch"], line[key]) for line in log if key in line]
            if points:
                label = " ".join(([run] if len(logs) > 1 else []) + ([key] if len(keys) > 1 else []))
                axes.plot(
                    *zip(*points, strict=True),
                    STYLES[style % len(STYLES)],
                    color=f"C{number if len(logs) > 1 else style}",
                    marker="o" if len(points) < 30 else None,
                    markersize=3,
                    linewidth=1.2,
                    label=label or None,
                )
    axes.set_xlabel("epoch", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if len(logs) > 1 or len(keys) > 1:
        axes.legend(fontsize=7)
    return (
        f"<figure><h3>{html.escape(panel.title)}</h3>{inline(figure, panel.title)}"
        f"<figcaption>{html.escape(panel.hint)}</figcaption></figure>"
    )


def inline(figure: Any, text: str) -> str:
    """Return a matplotlib figure as an <img> with inline data."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    data = base64.b64encode(png.getvalue()).decode()
    return f"<img alt='{html.escape(text, quote=True)}' src='data:image/png;base64,{data}'>"
