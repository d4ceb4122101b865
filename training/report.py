"""RUN/report.html: one self-contained page that shows whether an encoder is learning anything.

write_report([run], run / "report.html")
write_report([nnclr, simclr], "comparison.html")        # curves together

It has the verdict, scores of the last evaluation, symptoms, curves, neighbors of a few images, and settings.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.file_replacement import replace_file

from .monitor import EXAMPLES, read_lines, read_log, read_neighbors
from .verdict import UNKNOWN, Verdict, symptoms

Line = Mapping[str, Any]
Log = Sequence[Line]
CHECKPOINTS = 6  # columns of the figure of neighbors in training
QUERIES = 4  # rows of it
SHOWN = 3  # neighbors of each query at a checkpoint
LEAST_RANGE = 0.01  # of an axis, as a share of its values
LINES = ("-", "--", ":", "-.")
# left, bottom, width and height of a plot within its image: computing them takes as long as drawing
WITHIN = (0.15, 0.16, 0.82, 0.76)
STYLE = """
:root{color-scheme:light dark;--quiet:light-dark(#555,#aaa)}
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;
color:light-dark(#222,#ddd);background:light-dark(#fff,#16181b)}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(21rem,100%),1fr));gap:1.5rem}
figure{margin:0}figure img{width:100%;border-radius:6px}figcaption{color:var(--quiet);font-size:.9rem}
h1{font-size:1.6rem}h2{margin-top:2.5rem;font-size:1.25rem}h3{margin:0;font-size:1rem;font-weight:600}
table{border-collapse:collapse}th{text-align:left;font-weight:600}
td,th{padding:.15rem .9rem .15rem 0;vertical-align:top}
.well{color:light-dark(#17632c,#7fd496)}
.ill{border-left:4px solid #b3261e;padding:.4rem 1rem;background:light-dark(#fdf1f0,#3a1f1d)}
.early{color:var(--quiet)}.verdict{font-size:1.15rem}
.one{font-size:1.6rem;margin:.5rem 0}
.wide,.nn{overflow-x:auto}.nn td{padding:.15rem;text-align:center;vertical-align:middle;line-height:1.1}
.nn td.first{padding-left:1rem}
.nn th{padding-left:1rem}.none{color:#999;font-size:.75rem}
details{margin-top:2rem}details td{overflow-wrap:anywhere;min-width:8rem}
"""


def write_report(runs: Sequence[Path], path: Path) -> Path:
    """Write one run, or several together, as one self-contained page.

    Raises:
        InvalidRequest: a folder that does not hold a run.
    """
    runs = [Path(run) for run in runs]
    for run in runs:
        if not (run / "run.json").is_file():
            raise InvalidRequest(f"{run} does not hold a run; name a folder that `nnclr pretrain --out` wrote.")
    names = _names(runs)
    about = {name: _about(run) for name, run in zip(names, runs, strict=True)}
    logs = {name: read_log(run) for name, run in zip(names, runs, strict=True)}
    title = " and ".join(names) if len(names) < 4 else f"{len(names)} runs: {', '.join(names)}"
    verdicts = {name: Verdict.read(run) for name, run in zip(names, runs, strict=True)}
    body = [
        f"<h1>{html.escape(title)}</h1>",
        *(_verdict(name if len(runs) > 1 else "", one) for name, one in verdicts.items() if one is not None),
        _health({name: log for name, log in logs.items() if verdicts[name] is None}, about),
        _scores(logs, about),
        f"<main>{draw_panels(logs)}</main>",
        *(
            _heading(name, len(runs)) + _examples(run) + draw_neighbors(read_neighbors(run))
            for name, run in zip(names, runs, strict=True)
        ),
        _settings(about),
    ]
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>{''.join(body)}</html>"
    )
    if path.is_dir():
        path = path / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, page)
    return path


def _about(run: Path) -> dict[str, Any]:
    try:
        return json.loads((run / "run.json").read_text())
    except ValueError as error:
        raise InvalidRequest(
            f"{run / 'run.json'} is damaged; continuing the run with --resume writes it again."
        ) from error


def _names(runs: Sequence[Path]) -> list[str]:
    resolved = [run.resolve() for run in runs]
    short = [run.name for run in resolved]
    return short if len(set(short)) == len(short) else ["/".join(run.parts[-2:]) for run in resolved]


def _verdict(run: str, verdict: Verdict) -> str:
    """Draw a verdict, with the scores that it is based on."""
    kind = "well" if verdict.choice == "run" else "early" if verdict.choice == UNKNOWN else "ill"
    title = f"{html.escape(run)}: verdict" if run else "Verdict"
    shown = f"<p class='{kind} verdict'><b>{title}:</b> {html.escape(verdict.sentence)}</p>"
    if not verdict.scores:
        return shown
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{value:.3f}</td><td>{verdict.raw.get(name, value):.3f}</td></tr>"
        for name, value in sorted(verdict.scores.items(), key=lambda one: -one[1])
    )
    head = f"<th>share of {verdict.labels} labels that the nearest neighbors predict</th>"
    head = f"<tr>{head}<th>as a collection compares</th><th>raw vectors</th></tr>"
    return f"{shown}<div class=wide><table>{head}{rows}</table></div>"


def _heading(name: str, count: int) -> str:
    return f"<h2>{html.escape(name)}</h2>" if count > 1 else ""


def _scores(logs: Mapping[str, list[dict[str, Any]]], about: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw a table with the last and the best evaluation; the exported encoder has the last."""
    tested = {run: one.get("scored_on", {}) for run, one in about.items()}
    rows = []
    for run, log in logs.items():
        keys = sorted({key for line in log for key in line if key.startswith(("knn", "linear/"))})
        for key in keys:
            values = [line[key] for line in log if key in line]
            rows.append((run, key, _with_interval(values[-1], tested[run].get(key.partition("/")[2], 0)), max(values)))
    if not rows:
        if labeled := sorted({html.escape(name) for one in tested.values() for name in one}):
            return f"<p>No scores yet. The run scores the encoder on {', '.join(labeled)} at its next checkpoint.</p>"
        return (
            "<p>No scores. A run is scored at each checkpoint if its data has one folder per class, also in train/ and "
            "val/ (or test/), or if --labels names a table.</p>"
        )
    cells = "".join(
        f"<tr><td>{html.escape(run)}</td><td>{html.escape(key)}</td><td><b>{last}</b></td><td>{best:.3f}</td></tr>"
        for run, key, last, best in rows
    )
    head = "".join(f"<th>{html.escape(one)}</th>" for one in ("run", "top-1 accuracy", "last", "best seen"))
    return f"<div class=wide><table><tr>{head}</tr>{cells}</table></div><p>± is half of the 95% interval.</p>"


def _with_interval(score: float, tested: int) -> str:
    if not tested:
        return f"{score:.3f}"
    return f"{score:.3f} ± {1.96 * (score * (1 - score) / tested) ** 0.5:.3f}"


def _health(logs: Mapping[str, list[dict[str, Any]]], about: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the symptoms of runs without a verdict; the verdict of a finished run contains them."""
    paragraphs = []
    for run, log in logs.items():
        one = about[run]
        warmup = one.get("warmup_epochs", 0) / max(one.get("epochs", 1), 1e-9)
        name = f"{run}: " if len(about) > 1 else ""
        found = symptoms(log, one.get("steps", 0), warmup=warmup).values()
        paragraphs += [f"<p class=ill>{html.escape(name + sentence)}</p>" for sentence in found]
        paragraphs += [f"<p class=early>{html.escape(name)}The run is not finished, so it has no verdict.</p>"]
    return "".join(paragraphs)


def _settings(about: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the settings of the runs; with several runs, the settings that differ come first."""
    keys = list(dict.fromkeys(key for one in about.values() for key in one if key not in ("verdict", "scored_on")))
    keys.sort(key=lambda key: len({json.dumps(one.get(key)) for one in about.values()}) == 1)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in about) if len(about) > 1 else "<th>value</th>"
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th>"
        + "".join(f"<td>{html.escape(str(one.get(key, '')))}</td>" for one in about.values())
        + "</tr>"
        for key in keys
    )
    table = f"<table><tr><th></th>{head}</tr>{rows}</table>"
    return f"<details><summary>Settings</summary><div class=wide>{table}</div></details>"


# ------------------------------------------------------------------------------ neighbors


def _examples(run: Path) -> str:
    """Draw a few images with their nearest others, by the vectors of the finished run."""
    if not (lines := read_lines(run / EXAMPLES)):
        return ""
    return (
        "<h2>Nearest images</h2><p>Left: an image of the scored part. Right: the nearest other images, by the vectors "
        f"of this run as a collection compares them, with the cosine.</p><div class=nn>{_batch(lines[-1])}</div>"
    )


def draw_neighbors(lines: Sequence[Line]) -> str:
    """Return both figures as HTML; empty for a run without recorded neighbors.

    Args:
        lines: from RUN/neighbors.jsonl.
    """
    if not lines:
        return ""
    return (
        "<h2>Nearest neighbors in the support set</h2>"
        "<p>Left: the query. Right: its nearest neighbors in the support set at the last checkpoint, without the "
        f"image's own older embeddings.</p><div class=nn>{_batch(lines[-1])}</div>"
        "<h2>Evolution of the nearest neighbors</h2>"
        "<p>The same queries during training. In the paper neighbors change from color and texture to classes.</p>"
        f"<div class=nn>{_history(lines)}</div>"
    )


def _batch(line: Line) -> str:
    rows = []
    for query, found, similarity in zip(line["queries"], line["neighbors"], line["similarity"], strict=True):
        cells = [
            _tile(line, query, "query"),
            *(_tile(line, i, f"{s:.2f}") for i, s in zip(found, similarity, strict=True)),
        ]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _history(lines: Sequence[Line]) -> str:
    """Draw one row per query and one column per checkpoint, from the first to the last."""
    count = min(CHECKPOINTS, len(lines))
    moments = [lines[round(i * (len(lines) - 1) / max(1, count - 1))] for i in range(count)]
    head = "".join(f"<th colspan={SHOWN}>epoch {moment['epoch']:g}</th>" for moment in moments)
    rows = []
    for number, query in enumerate(moments[-1]["queries"][:QUERIES]):
        cells = [f"<td>{_tile(moments[-1], query, 'query')}</td>"]
        for moment in moments:
            found = moment["neighbors"][number][:SHOWN]
            tiles = [f"<td{' class=first' * (i == 0)}>{_tile(moment, one, '')}</td>" for i, one in enumerate(found)]
            cells += tiles + ["<td></td>"] * (SHOWN - len(tiles))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _tile(line: Line, number: int, caption: str) -> str:
    data = line["thumbnails"].get(str(number))
    if data is None:  # an initial random row
        return "<span class=none>none yet</span>"
    note = f"<br><small>{caption}</small>" if caption else ""
    return f"<img alt='image {number}' src='data:image/jpeg;base64,{data}'>{note}"


# ------------------------------------------------------------------------------ curves


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
    Panel(
        "Forgetting", ("forgetting",), "part of the loss; near 0 if vectors do not predict the columns of --not-same"
    ),
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
    title, hint = f"<h3>{html.escape(panel.title)}</h3>", f"<figcaption>{html.escape(panel.hint)}</figcaption>"
    if all(sum(key in line for line in log) < 2 for log in logs.values() for key in keys):  # no curve yet
        values = [f"{line[key]:.4g}" for log in logs.values() for line in log for key in keys if key in line]
        return f"<figure>{title}<p class=one>{', '.join(values)}</p>{hint}</figure>"
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
                    LINES[style % len(LINES)],
                    color=f"C{number if len(logs) > 1 else style}",
                    marker="o" if len(points) < 30 else None,
                    markersize=3,
                    linewidth=1.2,
                    label=label or None,
                )
    axes.set_xlabel("epoch", fontsize=8)
    low, high = axes.get_ylim()
    if high - low < LEAST_RANGE * abs(high):  # the ticks of a constant would differ in digits that mean nothing
        axes.set_ylim(low - LEAST_RANGE * abs(high), high + LEAST_RANGE * abs(high))
    axes.yaxis.set_major_formatter("{x:.4g}")
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    if len(logs) > 1 or len(keys) > 1:
        axes.legend(fontsize=7)
    return f"<figure>{title}{inline(figure, panel.title)}{hint}</figure>"


def inline(figure: Any, text: str) -> str:
    """Return a matplotlib figure as an <img> with inline data."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110)
    data = base64.b64encode(png.getvalue()).decode()
    return f"<img alt='{html.escape(text, quote=True)}' src='data:image/png;base64,{data}'>"
