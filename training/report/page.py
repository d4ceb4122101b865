"""The report's page: the verdict, scores of the last evaluation, symptoms, curves, neighbors, settings."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.file_replacement import replace_file

from ..monitor import read_log, read_neighbors
from ..verdict import UNKNOWN, Verdict, symptoms
from .neighbors import draw_neighbors
from .plots import draw_panels

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem;color:#222;background:#fff}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(21rem,100%),1fr));gap:1.5rem}
figure{margin:0}figure img{width:100%}figcaption{color:#555;font-size:.9rem}
h1{font-size:1.6rem}h2{margin-top:2.5rem;font-size:1.25rem}h3{margin:0;font-size:1rem;font-weight:600}
table{border-collapse:collapse}th{text-align:left;font-weight:600}
td,th{padding:.15rem .9rem .15rem 0;vertical-align:top;overflow-wrap:anywhere}
.well{color:#17632c}.ill{border-left:4px solid #b3261e;padding:.4rem 1rem;background:#fdf1f0}
.early{color:#555}.verdict{font-size:1.15rem}
.nn{overflow-x:auto}.nn td{padding:.15rem;text-align:center;vertical-align:middle;line-height:1.1}
.nn td.first{padding-left:1rem}
.nn th{padding-left:1rem}.none{color:#999;font-size:.75rem}details{margin-top:2rem}
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
        _scores(logs, about),
        _health({name: log for name, log in logs.items() if verdicts[name] is None}, about),
        f"<main>{draw_panels(logs)}</main>",
        *(
            _heading(name, len(runs)) + draw_neighbors(read_neighbors(run))
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
    """Return the folders' names, with their parents' names if those are not unique."""
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
    return f"{shown}<table><tr>{head}<th>as a collection compares</th><th>raw vectors</th></tr>{rows}</table>"


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
    return f"<div class=nn><table><tr>{head}</tr>{cells}</table></div><p>± is half of the 95% interval.</p>"


def _with_interval(score: float, tested: int) -> str:
    """Return an accuracy with half of its 95% interval, by the normal approximation."""
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
    return f"<details open><summary>Settings</summary><table><tr><th></th>{head}</tr>{rows}</table></details>"
