"""The GPU benchmark runs on the CPU at toy size and writes its rows."""

import importlib
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_benchmark_writes_a_row_for_each_form(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    arguments = ["--toy", "--device", "cpu", "--steps", "1", "--only", "resnet18_96", "--forms", "eager", "graph"]
    importlib.import_module("pretrain_gpu").main([*arguments, "--out", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / "pretrain_gpu.jsonl").read_text().splitlines()]
    assert [row["form"] for row in rows] == ["network alone", "eager", "graph"]
    for row in rows:
        assert row["images_per_s"] == pytest.approx(8 / row["ms"] * 1e3)
        assert row["of_network"] == pytest.approx(row["images_per_s"] / rows[0]["images_per_s"])
    assert capsys.readouterr().out.count("| resnet18_96 |") == 3
