"""List the pretraining runs below a folder from the files that they write; the training program is not needed.

    list_runs(Path("runs"))                 # [Run("photos", "running", step=1200, steps=5000, ...), ...]
    read_report(Path("runs"), "photos")     # report.html

A run does not record whether its process is alive, so a run whose log has not changed for a while counts as stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nnclr_hub.errors import RunNotFound
from nnclr_hub.json_text import parse_json

ABOUT, LOG, REPORT = "run.json", "log.jsonl", "report.html"
SILENT_S = 180.0
DEEPEST = 3  # levels of folders that are searched
MOST_RUNS = 200
TAIL = 64 * 1024  # bytes of the log that are read
MOST_ABOUT = 1_000_000
MOST_REPORT = 50_000_000
State = Literal["running", "stopped", "done"]


@dataclass(frozen=True)
class Run:
    """The state of a run.

    name: its folder, relative to the searched folder.
    recipe: "" if it cannot be read.
    step, steps: the progress; steps is 0 if it cannot be read.
    figures: numbers of its last log lines, such as loss and knn.
    changed: time of its last log line, in seconds since 1970.
    report: time when its report was written; None: there is none yet.
    """

    name: str
    state: State
    recipe: str
    step: int
    steps: int
    figures: dict[str, float]
    changed: float
    report: float | None


def list_runs(folder: Path) -> list[Run]:
    """Return the runs, most recent log line first; links are not followed."""
    found = [_run(path, path.relative_to(folder).as_posix()) for path in _folders(Path(folder))]
    return sorted(found, key=lambda run: -run.changed)[:MOST_RUNS]


def read_report(folder: Path, name: str) -> bytes:
    """Return the report of a run from `list_runs`: HTML, not to be trusted more than its author."""
    path = next((one for one in _folders(Path(folder)) if one.relative_to(folder).as_posix() == name), None)
    if path is None:
        raise RunNotFound(f"No run is named {name!r:.150}; list the runs to see their names.")
    try:
        with (path / REPORT).open("rb") as file:
            return file.read(MOST_REPORT)
    except OSError as error:
        raise RunNotFound(f"Run {name!r:.150} has no report yet; the first checkpoint writes it.") from error


def _folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the folders below that hold a run."""
    try:
        inside = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:  # removed, or not readable
        return
    for name in inside:
        path = folder / name
        if (path / ABOUT).is_file():
            yield path
        elif depth + 1 < DEEPEST and not name.startswith("."):
            yield from _folders(path, depth + 1)


def _run(path: Path, name: str) -> Run:
    about, lines = _about(path), _last_lines(path / LOG)
    merged = {key: value for line in lines for key, value in line.items()}
    step, steps = (int(value) if isinstance(value, int) else 0 for value in (merged.get("step"), about.get("steps")))
    changed = _changed(path / LOG) or _changed(path / ABOUT) or 0.0
    if steps and step >= steps:
        state: State = "done"
    else:
        state = "running" if time.time() - changed < SILENT_S else "stopped"
    figures = {key: float(merged[key]) for key in merged if key == "loss" or key.startswith(("knn", "linear/"))}
    return Run(name, state, str(about.get("recipe", ""))[:100], step, steps, figures, changed, _changed(path / REPORT))


def _about(path: Path) -> dict[str, Any]:
    try:
        with (path / ABOUT).open("rb") as file:
            about = parse_json(file.read(MOST_ABOUT))
    except (OSError, ValueError):  # being written, or damaged; the run is listed all the same
        return {}
    return about if isinstance(about, dict) else {}


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """Return the numbers of the last lines of the log that can be parsed; JSON cannot represent a NaN."""
    found = []
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read(TAIL).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    for line in lines:
        with suppress(ValueError):  # cut off at its start, or not yet complete
            one = parse_json(line)
            items = one.items() if isinstance(one, dict) else ()
            found.append({key: n for key, n in items if isinstance(n, int | float) and abs(n) < 1e300})
    return found


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
