"""Pretraining runs below a folder, told from what they write there; the program that trains is not needed.

    list_runs(Path("runs"))                 # [Run("photos", "running", step=1200, steps=5000, ...), ...]
    read_report(Path("runs"), "photos")     # report.html

A run says nothing of whether it still lives, so one whose log has been silent for a while counts as stopped.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nnclr_hub.errors import RunNotFound

ABOUT, LOG, REPORT = "run.json", "log.jsonl", "report.html"
SILENT_S = 180.0
DEEPEST = 3  # folders below the one that is looked through
MOST_RUNS = 200
TAIL = 64 * 1024  # bytes of the log that are read
MOST_ABOUT = 1_000_000
MOST_REPORT = 50_000_000
State = Literal["running", "stopped", "done"]


@dataclass(frozen=True)
class Run:
    """A run at one moment.

    name: its folder, below the one that was looked through.
    recipe: "" where that cannot be read.
    step, steps: how far it is; steps is 0 where that cannot be read.
    figures: of its last log lines, such as loss and knn.
    changed: when it logged last, in seconds since 1970.
    report: when its report was written last; None: there is none yet.
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
    """The runs, those that logged last first; links are not followed."""
    found = [_run(path, path.relative_to(folder).as_posix()) for path in _folders(Path(folder))]
    return sorted(found, key=lambda run: -run.changed)[:MOST_RUNS]


def read_report(folder: Path, name: str) -> bytes:
    """The report of one of `list_runs`, HTML that belongs to whoever wrote it.

    Raises:
        RunNotFound: there is no such run, or it has no report yet.
    """
    path = next((one for one in _folders(Path(folder)) if one.relative_to(folder).as_posix() == name), None)
    if path is None:
        raise RunNotFound(f"There is no run {name!r:.150}: list the runs to see their names.")
    try:
        with (path / REPORT).open("rb") as file:
            return file.read(MOST_REPORT)
    except OSError as error:
        raise RunNotFound(f"The run {name!r:.150} has no report yet: it comes with the first checkpoint.") from error


def _folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    """The folders below that hold a run."""
    try:
        inside = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:  # gone, or not ours to read
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
    told = {key: float(merged[key]) for key in merged if key == "loss" or key.startswith(("knn", "linear/"))}
    return Run(name, state, str(about.get("recipe", ""))[:100], step, steps, told, changed, _changed(path / REPORT))


def _about(path: Path) -> dict[str, Any]:
    try:
        with (path / ABOUT).open("rb") as file:
            about = json.loads(file.read(MOST_ABOUT))
    except (OSError, ValueError):  # being written, or damaged: the run is there all the same
        return {}
    return about if isinstance(about, dict) else {}


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """The log's last lines, those that can be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            text = file.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except ValueError:  # cut off at the beginning, or not yet written to its end
            continue
        if isinstance(one, dict):
            found.append(
                {key: value for key, value in one.items() if isinstance(value, int | float) and _is_finite(value)}
            )
    return found


def _is_finite(value: float) -> bool:
    """A loss may be no number, which JSON has no word for."""
    return abs(value) < 1e300 and math.isfinite(value)


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
