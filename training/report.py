"""RUN/report.html: one self-contained page that shows whether the encoder is learning anything."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

from .monitor import read_log

# title, the logged names it draws, what to look for
PANELS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("Loss", ("loss",), "falls, with a step up where neighbours come in"),
    ("20-NN accuracy", ("knn20/",), "the encoder's own figure on held-out pictures"),
    ("Neighbour accuracy", ("nn_accuracy", "neighbour_share"), "share of neighbours of the query's own class"),
    ("Neighbour similarity", ("nn_similarity",), "stays below 1"),
    ("Self-match rate", ("self_match_rate",), "how often a picture's own older embedding was passed over"),
    ("Age of the neighbour (steps)", ("nn_age",), "about half the queue's span"),
    ("Distinct neighbours in a batch", ("nn_distinct", "queue_fill"), "near 1; 0 is collapse"),
    ("Spread of the projections", ("z_std",), "near 1; 0 is collapse"),
    ("RankMe", ("rankme",), "effective dimensions of the projections"),
    ("Learning rate", ("lr",), "warm-up, then cosine"),
    ("Images per second", ("images_per_s",), ""),
    ("Waiting for data", ("data_wait",), "share of the time"),
)


def write_report(run: Path) -> Path:
    """Draws RUN/log.jsonl into RUN/report.html and returns its path."""
    about = json.loads((run / "run.json").read_text())
    log = read_log(run)
    figures = [_panel(log, *panel) for panel in PANELS]
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(str(v))}</td></tr>" for k, v in about.items())
    scores = {name: line[name] for line in log for name in line if name.startswith("knn20/")}
    headline = ", ".join(f"{html.escape(name)}: {value:.3f}" for name, value in scores.items()) or "no labelled data"
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(run.name)}</title>"
        "<style>body{font:16px/1.5 system-ui;margin:2rem auto;max-width:70rem;padding:0 1rem}"
        "main{display:grid;grid-template-columns:repeat(auto-fill,minmax(20rem,1fr));gap:1rem}"
        "figure{margin:0}img{width:100%}figcaption{color:#555;font-size:.9rem}"
        "th{text-align:left;padding-right:2rem;font-weight:500}</style>"
        f"<h1>{html.escape(run.name)}</h1><p>20-NN at the last evaluation: {headline}</p>"
        f"<main>{''.join(figures)}</main><h2>Run</h2><table>{rows}</table></html>"
    )
    path = run / "report.html"
    half = path.with_suffix(".part")
    half.write_text(page)
    half.replace(path)
    return path


def _panel(log: list[dict[str, Any]], title: str, names: tuple[str, ...], hint: str) -> str:
    """One plot as an inline PNG; nothing if the run logs none of the names."""
    drawn = sorted({key for line in log for key in line if any(key.startswith(name) for name in names)})
    if not drawn:
        return ""
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    figure = Figure(figsize=(4.2, 2.8), layout="constrained")
    axes = figure.subplots()
    for key in drawn:
        points = [(line["epoch"], line[key]) for line in log if key in line]
        axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else None, markersize=3, label=key)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("epoch", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if len(drawn) > 1:
        axes.legend(fontsize=7)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    data = base64.b64encode(png.getvalue()).decode()
    return f"<figure><img alt='{title}' src='data:image/png;base64,{data}'><figcaption>{hint}</figcaption></figure>"
