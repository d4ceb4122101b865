"""Rows of a benchmark on a GPU, written down one by one: a run that is killed leaves what it has."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

Figure = str | float | int | None


class Report:
    """OUT/NAME.jsonl, a line a row, and OUT/NAME.md, the same as a table under a line on the machine.

    Args:
        out: the folder.
        name: of the files.
        where: the device.
        columns: of the table, in order; a row may lack some, and what it has beyond them is in the JSON alone.
    """

    def __init__(self, out: Path, name: str, where: torch.device, columns: Sequence[str]) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._lines, self._table, self._columns = out / f"{name}.jsonl", out / f"{name}.md", columns
        about = machine(where)
        self._lines.write_text(json.dumps(about) + "\n", "utf-8")
        told = ", ".join(f"{key} {value}" for key, value in about.items())
        head = f"{told}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        self._table.write_text(head, "utf-8")
        print(head, end="", flush=True)

    def add(self, row: Mapping[str, Figure]) -> None:
        """Writes a row to both files and prints it."""
        line = f"| {' | '.join(_shown(row.get(column)) for column in self._columns)} |\n"
        for path, text in ((self._lines, json.dumps(row) + "\n"), (self._table, line)):
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        print(line, end="", flush=True)

    def note(self, sentence: str) -> None:
        """A line below the table."""
        with self._table.open("a", encoding="utf-8") as file:
            file.write(f"\n{sentence}\n")
        print(sentence, flush=True)


def machine(where: torch.device) -> dict[str, Figure]:
    """What the figures hold for."""
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else platform.processor() or platform.machine()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": name,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if where.type == "cuda" else None,
        "python": platform.python_version(),
        "command": shlex.join(["python", *sys.argv]),
    }


def _shown(value: Figure) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
