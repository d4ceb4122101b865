"""examples/scanner.py runs at toy size, and its planted styles are found."""

import runpy
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from tiny_runs import FAST

EXAMPLE = Path(__file__).parents[2] / "examples" / "scanner.py"


def test_both_arms_are_trained_and_scored(data, monkeypatch, tmp_path, capsys):
    words = [word for one in FAST if not one.startswith("epochs") for word in ("--set", one)]
    call = [str(data), "--epochs", "1", "--seeds", "1", "--out", str(tmp_path), *words]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *call])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| plain", "| not_same"]
    warmth: dict[str, list[float]] = {"warm": [], "cold": []}
    for line in (tmp_path / "planted" / "labels.csv").read_text().splitlines()[1:]:
        path, _, scanner = line.split(",")
        red, _, blue = np.asarray(Image.open(tmp_path / "planted" / path)).reshape(-1, 3).mean(axis=0)
        warmth[scanner].append(red / blue)
    assert np.median(warmth["warm"]) > 1.5 * np.median(warmth["cold"])
