"""RUN/report.html: one self-contained page that shows whether an encoder is learning anything.

write_report([run], run / "report.html")
write_report([nnclr, simclr], "comparison.html")        # curves together

It has the verdict, scores of the last evaluation, symptoms, curves, neighbors of a few images, and settings.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.json_text import parse_json
from nnclr_hub.report_page import enlargeable, report_page, tile

from .monitor import EXAMPLES, NEIGHBORS, read_lines, read_log
from .verdict import Verdict, symptoms

Line = Mapping[str, Any]
Log = Sequence[Line]
CHECKPOINTS = 6  # columns of the figure of neighbors in training
QUERIES = 4  # rows of it
SHOWN = 3  # neighbors of each query at a checkpoint
LEAST_RANGE = 0.05  # of the loss's axis, as a share of its values; the other axes begin at 0
WIDE, HIGH, LEFT, BELOW, MARGIN = 360, 220, 48, 32, 10  # pixels of a plot, and around its curves
COLORS = ("var(--accent)", "#4e79a7", "#59a14f", "#b07aa1", "#edc948", "#76b7b2", "#e15759", "#9c755f")
DASHES = ("", "6 4", "2 3", "8 3 2 3")


def write_report(runs: Sequence[Path], path: Path) -> Path:
    """Write one run, or several together, as one self-contained page.

    Raises:
        InvalidRequest: a folder that does not hold a run.
    """
    runs = [Path(run) for run in runs]
    for run in runs:
        if not (run / "run.json").is_file():
            raise InvalidRequest(f"{run} does not hold a run; name a folder that `nnclr pretrain --out` wrote.")
    named = dict(zip(_names(runs), runs, strict=True))
    titles = {name: f"{name}: " * (len(runs) > 1) for name in named}  # before what is shown of one of several runs
    about = {name: read_about(run) for name, run in named.items()}
    logs = {name: read_log(run) for name, run in named.items()}
    title = " and ".join(named) if len(named) < 4 else f"{len(named)} runs: {', '.join(named)}"
    verdicts = {name: Verdict.read(run) for name, run in named.items()}
    body = [
        *(_verdict(titles[name], one) for name, one in verdicts.items() if one is not None),
        _health({name: log for name, log in logs.items() if verdicts[name] is None}, about),
        *(_examples(read_lines(run / EXAMPLES), titles[name]) for name, run in named.items()),
        "<h2>Training</h2>",
        _scores(logs, about),
        f"<div class=plots>{''.join(_draw(logs, panel) for panel in PANELS)}</div>",
        *(_neighbors(read_lines(run / NEIGHBORS), titles[name]) for name, run in named.items()),
        _settings(about),
    ]
    if path.is_dir():
        path = path / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, report_page(f"Pretraining: {title}", "\n".join(body)))
    return path


def read_about(run: Path) -> dict[str, Any]:
    """Return RUN/run.json, {} if it does not exist; InvalidRequest is raised if it is damaged."""
    try:
        return dict(parse_json((run / "run.json").read_bytes())) if (run / "run.json").exists() else {}
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"{run / 'run.json'} is damaged; continuing the run with --resume writes it again."
        ) from error


def _names(runs: Sequence[Path]) -> list[str]:
    resolved = [run.resolve() for run in runs]
    short = [run.name for run in resolved]
    return short if len(set(short)) == len(short) else ["/".join(run.parts[-2:]) for run in resolved]


def _verdict(title: str, verdict: Verdict) -> str:
    """Draw a verdict, with the scores that it is based on."""
    good = " good" * (verdict.choice == "run")
    shown = f"<p class='verdict{good}'><b>{html.escape(title)}Verdict:</b> {html.escape(verdict.sentence)}</p>"
    if not verdict.scores:
        return shown
    rows = "".join(
        f"<tr{' class=chosen' * (name == verdict.use)}><td>{html.escape('this run' if name == 'run' else name)}</td>"
        f"<td>{value:.1%}</td><td>{verdict.raw.get(name, value):.1%}</td></tr>"
        for name, value in sorted(verdict.scores.items(), key=lambda one: -one[1])
    )
    note = f"Share of {verdict.labels} labels that the nearest neighbors predict. hog and color need no training."
    head = "<tr><th>vectors</th><th>as a collection compares them</th><th>raw</th></tr>"
    return f"{shown}<p class=note>{note}</p><div class=scroll><table>{head}{rows}</table></div>"


def _scores(logs: Mapping[str, list[dict[str, Any]]], about: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw a table with the last and the best evaluation; the exported encoder has the last."""
    tested = {run: one.get("scored_on", {}) for run, one in about.items()}
    rows = []
    for run, log in logs.items():
        for key in sorted({key for line in log for key in line if key.startswith(("knn", "linear/"))}):
            values = [line[key] for line in log if key in line]
            name = f"{run}: {_metric(key)}" if len(logs) > 1 else _metric(key)
            count = tested[run].get(key.partition("/")[2], 0)
            half = 196 * (values[-1] * (1 - values[-1]) / count) ** 0.5 if count else 0
            last = f"{values[-1]:.1%}" + f" ± {half:.1f}" * bool(count)
            rows.append(f"<tr><td>{html.escape(name)}</td><td><b>{last}</b></td><td>{max(values):.1%}</td></tr>")
    if not rows:
        if labeled := sorted({html.escape(name) for one in tested.values() for name in one}):
            return f"<p>No scores yet. The run scores the encoder on {', '.join(labeled)} at its next checkpoint.</p>"
        return (
            "<p>No scores. A run is scored at each checkpoint if its data has one folder per class, also in train/ and "
            "val/ (or test/), or if --labels names a table.</p>"
        )
    head = "<tr><th>accuracy of the encoder</th><th>last</th><th>best seen</th></tr>"
    note = "<p class=note>± is half of the 95% interval.</p>"
    return f"<div class=scroll><table>{head}{''.join(rows)}</table></div>{note}"


def _metric(key: str) -> str:
    kind, slash, data = key.partition("/")
    return f"{kind[3:]}-NN on {data}" if kind.startswith("knn") and slash else f"{kind} on {data}" if slash else key


def _health(logs: Mapping[str, list[dict[str, Any]]], about: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the symptoms of runs without a verdict; the verdict of a finished run contains them."""
    paragraphs = []
    for run, log in logs.items():
        one = about[run]
        warmup = one.get("warmup_epochs", 0) / max(one.get("epochs", 1), 1e-9)
        name = f"{run}: " if len(about) > 1 else ""
        found = symptoms(log, one.get("steps", 0), warmup=warmup).values()
        paragraphs += [f"<p class=verdict>{html.escape(name + sentence)}</p>" for sentence in found]
        paragraphs += [f"<p class=note>{html.escape(name)}The run is not finished, so it has no verdict.</p>"]
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
    return f"<h2>Settings</h2><details><summary>{len(keys)} settings</summary><div class=scroll>{table}</div></details>"


# ------------------------------------------------------------------------------ neighbors


def _examples(lines: Sequence[Line], title: str) -> str:
    if not lines:
        return ""
    return (
        f"<h2>{html.escape(title)}Nearest images</h2>"
        "<p class=note>First: an image of the scored part. Then: the nearest other images, by the vectors of this run "
        f"as a collection compares them, with the cosine. Click one to open it.</p>{_rows(lines[-1])}"
    )


def _neighbors(lines: Sequence[Line], title: str) -> str:
    if not lines:
        return ""
    return (
        f"<h2>{html.escape(title)}Nearest neighbors in the support set</h2>"
        "<p class=note>First: the query. Then: its nearest neighbors in the support set at the last checkpoint, "
        f"without the image's own older embeddings, with the cosine.</p>{_rows(lines[-1])}"
        f"<h2>{html.escape(title)}Evolution of the nearest neighbors</h2>"
        "<p class=note>The same queries during training. In the paper neighbors change from color and texture to "
        f"classes.</p>{_history(lines)}"
    )


def _rows(line: Line) -> str:
    rows = []
    for query, found, similarity in zip(line["queries"], line["neighbors"], line["similarity"], strict=True):
        tiles = [_tile(line, i, f"{s:.2f}") for i, s in zip(found, similarity, strict=True)]
        rows.append(f"<div class='group small'>{_tile(line, query, 'query')}{''.join(tiles)}</div>")
    return f"<div class=groups>{''.join(rows)}</div>"


def _history(lines: Sequence[Line]) -> str:
    count = min(CHECKPOINTS, len(lines))
    moments = [lines[round(i * (len(lines) - 1) / max(1, count - 1))] for i in range(count)]
    rows = ["".join(f"<th>{text}</th>" for text in ("query", *(f"epoch {one['epoch']:g}" for one in moments)))]
    for number, query in enumerate(moments[-1]["queries"][:QUERIES]):
        shown = [_tile(moments[-1], query, "")]
        shown += ["".join(_tile(one, i, "") for i in one["neighbors"][number][:SHOWN]) for one in moments]
        rows.append("".join(f"<td><div class='group small'>{cell}</div></td>" for cell in shown))
    return f"<div class=scroll><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table></div>"


def _tile(line: Line, number: int, caption: str) -> str:
    return tile("", line["thumbnails"].get(str(number)), caption)  # an initial random row of the set has no image


# ------------------------------------------------------------------------------ curves


@dataclass(frozen=True)
class Panel:
    """One plot.

    title: above it.
    names: logged names to draw, or prefixes of names.
    hint: what to look for, below it.
    from_zero: whether the axis begins at 0, so that small changes look small.
    """

    title: str
    names: tuple[str, ...]
    hint: str
    from_zero: bool = True


PANELS = (
    Panel("Loss", ("loss",), "falls; steps up when neighbors become positives", False),
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


def _draw(logs: Mapping[str, Log], panel: Panel) -> str:
    """Draw a panel; "" if no run has logged its names. Several runs share it, with one color per run."""
    keys = sorted({key for log in logs.values() for line in log for key in line if key.startswith(panel.names)})
    curves = []
    for number, (run, log) in enumerate(logs.items()):
        for place, key in enumerate(keys):
            label = " ".join([run] * (len(logs) > 1) + [_metric(key)] * (len(keys) > 1))
            points = [(line["epoch"], line[key]) for line in log if key in line]
            if points:
                color = COLORS[(number if len(logs) > 1 else place) % len(COLORS)]
                curves.append(Curve(label, color, DASHES[place % len(DASHES)] if len(logs) > 1 else "", points))
    if not curves:
        return ""
    head = "".join(f'<span><i style="background:{one.color}"></i>{html.escape(one.label)}</span>' for one in curves)
    head = f"<h3>{panel.title}</h3>" + f"<div class=legend>{head}</div>" * (len(curves) > 1)
    if all(len(curve.points) < 2 for curve in curves):  # no curve yet
        plot = f"{head}<p class=value>{', '.join(f'{curve.points[0][1]:.4g}' for curve in curves)}</p>"
    else:
        plot = enlargeable(head + _plot(curves, panel))
    return f"<figure>{plot}<figcaption class=note>{panel.hint}</figcaption></figure>"


class Curve(NamedTuple):
    """A line of a plot: `points` are (epoch, value); `dash` are the lengths of its dashes and gaps, "" for none."""

    label: str
    color: str
    dash: str
    points: Sequence[tuple[float, float]]


def _plot(curves: Sequence[Curve], panel: Panel) -> str:
    """Draw curves as SVG, with at most five round numbers on each axis."""
    epochs, values = ([point[axis] for one in curves for point in one.points] for axis in (0, 1))
    low, high = min(values), max(values)
    if panel.from_zero:
        low, high = min(0, low), max(0, high)
    if high - low < (least := LEAST_RANGE * abs(high) or 1):  # a constant, whose digits mean nothing
        low, high = low - least, high + least
    across, down = _ticks(0, max(epochs) or 1), _ticks(low, high)

    def x(epoch: float) -> float:
        return round(LEFT + epoch / across[-1] * (WIDE - LEFT - MARGIN), 1)

    def y(value: float) -> float:
        return round(MARGIN + (down[-1] - value) / (down[-1] - down[0]) * (HIGH - BELOW - MARGIN), 1)

    lines = "".join(
        f"<line class=grid x1={LEFT} x2={WIDE - MARGIN} y1={y(tick)} y2={y(tick)} />"
        f"<text x={LEFT - 6} y={y(tick) + 4} text-anchor=end>{tick:.4g}</text>"
        for tick in down
    )
    for tick in across:
        lines += f"<text x={x(tick)} y={HIGH - BELOW + 16} text-anchor=middle>{tick:g}</text>"
    lines += f"<text x={WIDE - MARGIN} y={HIGH - 2} text-anchor=end>epoch</text>"
    for one in curves:
        points = [(x(epoch), y(value)) for epoch, value in one.points]
        dots = "".join(f'<circle cx={a} cy={b} r=2.5 fill="{one.color}" />' for a, b in points if len(points) < 30)
        joined = " ".join(f"{a},{b}" for a, b in points)
        lines += f'<polyline points="{joined}" stroke="{one.color}" stroke-dasharray="{one.dash}" />{dots}'
    return f'<svg role=img aria-label="{panel.title}" viewBox="0 0 {WIDE} {HIGH}">{lines}</svg>'


def _ticks(low: float, high: float) -> list[float]:
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * 5 >= high - low)
    return [round(i * step, 12) for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]
