"""The report's page: scores of the last evaluation, symptoms, curves, neighbors, settings."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.file_replacement import replace_file

from ..floors import Floors
from ..health import symptoms
from ..monitor import read_log
from ..neighbor_history import read_neighbors
from ..starter import read_comparison, sentence
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
.early{color:#555}.above{color:#b3261e;font-weight:600}
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
    floors = {name: Floors.read(run) for name, run in zip(names, runs, strict=True)}
    body = [
        f"<h1>{html.escape(title)}</h1>",
        _scores(logs, floors),
        _health(logs, about),
        f"<main>{draw_panels(logs)}</main>",
        *(
            _heading(name, len(runs)) + draw_neighbors(read_neighbors(run))
            for name, run in zip(names, runs, strict=True)
        ),
        _settings(about),
        *(f"<p><b>{html.escape(name)}</b>: {html.escape(one)}</p>" for name, one in _against_starter(names, runs)),
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


def _against_starter(names: Sequence[str], runs: Sequence[Path]) -> list[tuple[str, str]]:
    """Return whether each run with labels is better than a starter."""
    found = ((name, read_comparison(run)) for name, run in zip(names, runs, strict=True))
    return [(name, sentence(one)) for name, one in found if one is not None]


def _heading(name: str, count: int) -> str:
    return f"<h2>{html.escape(name)}</h2>" if count > 1 else ""


def _scores(logs: Mapping[str, list[dict[str, Any]]], floors: Mapping[str, Floors]) -> str:
    """Draw a table with the last and the best evaluation and the floors; the exported encoder has the last."""
    named = list(dict.fromkeys(floor for one in floors.values() for floor in one.scores))
    rows = []
    for run, log in logs.items():
        keys = sorted({key for line in log for key in line if key.startswith(("knn", "linear/"))})
        for key in keys:
            values = [line[key] for line in log if key in line]
            tested = floors[run].tested.get(key.partition("/")[2], 0)
            below = [floors[run].scores.get(floor, {}).get(key) for floor in named]
            rows.append((run, key, _with_interval(values[-1], tested), f"{max(values):.3f}", values[-1], below))
    if not rows:
        if labeled := sorted({html.escape(name) for one in floors.values() for name in one.tested}):
            return f"<p>No scores yet. The run scores the encoder on {', '.join(labeled)} at its next checkpoint.</p>"
        return (
            "<p>No scores yet. The run scores the encoder at each checkpoint if the data has labeled images in "
            "train/CLASS/ and val/CLASS/ (or test/CLASS/).</p>"
        )
    cells = "".join(
        f"<tr><td>{html.escape(run)}</td><td>{html.escape(key)}</td><td><b>{last}</b></td><td>{best}</td>"
        + "".join(_floor_cell(value, floor) for floor in below)
        + "</tr>"
        for run, key, last, best, value, below in rows
    )
    head = "".join(f"<th>{html.escape(one)}</th>" for one in ("run", "top-1 accuracy", "last", "best seen", *named))
    about = "<p>± is half of the 95% interval. The columns after the run's scores are floors: vectors that nobody "
    about += "trained, on the same images. A floor that the run does not exceed is red.</p>"
    return f"<div class=nn><table><tr>{head}</tr>{cells}</table></div>{about if named else ''}"


def _with_interval(score: float, tested: int) -> str:
    """Return an accuracy with half of its 95% interval, by the normal approximation."""
    if not tested:
        return f"{score:.3f}"
    return f"{score:.3f} ± {1.96 * (score * (1 - score) / tested) ** 0.5:.3f}"


def _floor_cell(score: float, floor: float | None) -> str:
    if floor is None:
        return "<td></td>"
    return f"<td{' class=above' if floor >= score else ''}>{floor:.3f}</td>"


def _health(logs: Mapping[str, list[dict[str, Any]]], about: Mapping[str, Mapping[str, Any]]) -> str:
    paragraphs = []
    for run, log in logs.items():
        found_symptoms = symptoms(log, about[run].get("steps", 0))
        if found_symptoms is None:
            found = [("early", "The log has too few lines yet to judge whether the run is learning.")]
        else:
            found = [("ill", one) for one in found_symptoms.values()]
        name = f"{run}: " if len(logs) > 1 else ""
        paragraphs += [f"<p class={kind}>{html.escape(name + sentence)}</p>" for kind, sentence in found]
    return "".join(paragraphs) or "<p class=well>No symptoms of collapse or of a broken support set.</p>"


def _settings(about: Mapping[str, Mapping[str, Any]]) -> str:
    """Draw the settings of the runs; with several runs, the settings that differ come first."""
    keys = list(dict.fromkeys(key for one in about.values() for key in one))
    keys.sort(key=lambda key: len({json.dumps(one.get(key)) for one in about.values()}) == 1)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in about) if len(about) > 1 else "<th>value</th>"
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th>"
        + "".join(f"<td>{html.escape(str(one.get(key, '')))}</td>" for one in about.values())
        + "</tr>"
        for key in keys
    )
    return f"<details open><summary>Settings</summary><table><tr><th></th>{head}</tr>{rows}</table></details>"
