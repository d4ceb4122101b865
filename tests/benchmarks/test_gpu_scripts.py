"""The GPU benchmark runs on the CPU at toy size and writes its rows."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """script("pretrain_gpu") -> the module of that file."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["toy.py"])
    return importlib.import_module


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "pretrain_gpu.jsonl").read_text().splitlines()]


def test_flops_are_those_of_the_products(script):
    """Compare with torch's own count of the backbone's forward pass."""
    loops, pretrain_gpu = script("training_loop"), script("pretrain_gpu")
    recipe = pretrain_gpu.find_recipe("small").with_settings(
        [
            *("backbone=test_resnet", "method=simclr", "projection=none", "batch_size=8", "image_size=32"),
            *("pack_size=32", "eval_size=32", "precision=fp32"),
        ]
    )
    measured = loops.Loops(recipe, loops.noise_pack(16, 32), torch.device("cpu"), workers=0)
    whole = pretrain_gpu.step_flops(measured)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        measured.learner.backbone(torch.zeros(8, 3, 32, 32))
    forward = 2 * counter.get_total_flops()
    # the backward pass has twice the products of the forward pass, except for the gradient of the images
    assert 2.5 * forward < whole < 3.2 * forward
    measured.close()


@pytest.mark.slow
def test_the_benchmark_writes_a_row_for_every_measurement(script, tmp_path, capsys):
    arguments = ["--toy", "--device", "cpu", "--workers", "1", "--steps", "2", "--turns", "2", "--profile"]
    script("pretrain_gpu").main([*arguments, "--out", str(tmp_path)])
    machine, *written = rows(tmp_path)
    assert machine["torch"] == torch.__version__
    by_name = {row["what"]: row for row in written}
    model, loop = by_name["resnet50_224: model only"], by_name["resnet50_224: whole loop"]
    assert model["TFLOP/s"] == pytest.approx(model["of the matrix rate"] * written[0]["TFLOP/s"], rel=1e-6)
    assert loop["images/s"] == pytest.approx(4 / loop["ms a step"] * 1e3)
    expected = {"lookup, B 16, M 64", "lookup, B 16, M 128", "vit_small_224: torchvision workers (1)"}
    assert expected <= by_name.keys()
    table = (tmp_path / "pretrain_gpu.md").read_text()
    assert table.count("\n| ") == 1 + len(written)
    assert "aten::" in (tmp_path / "profile_resnet50_224.txt").read_text()
