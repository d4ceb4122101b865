"""The scripts that wait for a GPU run on the CPU at toy size, and write what they promise."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """script("roofline") -> the module of that file."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["toy.py"])
    return importlib.import_module


def rows(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_flops_are_those_of_the_products(script):
    """Beside torch's own count of the backbone's forward pass."""
    loops = script("training_loop")
    roofline = script("roofline")
    chosen = (
        script("pretrain_gpu")
        .find_recipe("small")
        .with_settings(
            [
                *("backbone=test_resnet", "method=simclr", "projection=none", "batch_size=8", "image_size=32"),
                *("pack_size=32", "eval_size=32", "precision=fp32"),
            ]
        )
    )
    made = loops.Loops(chosen, loops.made_pack(16, 32), torch.device("cpu"), workers=0)
    whole = roofline.step_flops(made)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        made.stepper._learner.backbone(torch.zeros(8, 3, 32, 32))
    forward = 2 * counter.get_total_flops()
    # backward has twice the products of the forward pass, but for the images' own gradient
    assert 2.5 * forward < whole < 3.2 * forward
    made.close()


@pytest.mark.slow
def test_the_training_benchmark_writes_rows_as_they_come(script, tmp_path, capsys):
    pretrain_gpu = script("pretrain_gpu")
    given = ["--toy", "--device", "cpu", "--workers", "0", "--steps", "1", "--turns", "1", "--out", str(tmp_path)]
    pretrain_gpu.main([*given, "--only", "resnet50_224", "augment", "lookup", "--profile"])
    machine, *found = rows(tmp_path, "pretrain_gpu")
    assert machine["torch"] == torch.__version__
    named = {row["what"]: row for row in found}
    model, loop = named["resnet50_224: model only"], named["resnet50_224: whole loop"]
    assert model["TFLOP/s"] == pytest.approx(model["of the matrix rate"] * found[0]["TFLOP/s"], rel=1e-6)
    assert loop["images/s"] == pytest.approx(4 / loop["ms a step"] * 1e3)
    assert {"look-up, B 16, M 64", "look-up, B 16, M 128"} <= named.keys()
    table = (tmp_path / "pretrain_gpu.md").read_text()
    assert table.count("\n| ") == 1 + len(found)
    assert "aten::" in (tmp_path / "profile_resnet50_224.txt").read_text()


def test_a_row_that_fails_leaves_the_others(script, tmp_path, monkeypatch, capsys):
    pretrain_gpu = script("pretrain_gpu")

    def lost(*_) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error.\nMore of it.")

    monkeypatch.setattr(pretrain_gpu, "Loops", lost)
    given = ["--toy", "--device", "cpu", "--out", str(tmp_path), "--only", "resnet50_224", "lookup"]
    pretrain_gpu.main(given)
    notes = {row["what"]: row.get("note") for row in rows(tmp_path, "pretrain_gpu")[1:]}
    assert notes["resnet50_224"] == "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."
    assert "look-up, B 16, M 64" in notes


def test_no_row_is_begun_when_the_time_is_up(script, tmp_path, capsys):
    script("pretrain_gpu").main(["--toy", "--device", "cpu", "--minutes", "0", "--out", str(tmp_path)])
    assert len(rows(tmp_path, "pretrain_gpu")) == 1 + 3  # the machine and its ceilings
    assert "left out for want of time: resnet50_224" in (tmp_path / "pretrain_gpu.md").read_text()


@pytest.mark.slow
def test_every_row_of_the_training_benchmark_runs(script, tmp_path, capsys):
    given = ["--toy", "--device", "cpu", "--workers", "1", "--steps", "2", "--turns", "2", "--out", str(tmp_path)]
    script("pretrain_gpu").main(given)
    named = [row["what"] for row in rows(tmp_path, "pretrain_gpu")[1:]]
    assert "vit_small_224: torchvision workers (1)" in named


def test_the_encoder_benchmark_says_what_bounds_it(script, tmp_path, monkeypatch, capsys):
    encoder_gpu = script("encoder_gpu")
    monkeypatch.setattr(encoder_gpu, "SECONDS", 0.1)
    encoder_gpu.main(["--toy", "--device", "cpu", "--out", str(tmp_path)])
    last = rows(tmp_path, "encoder_gpu")[-1]
    assert last["what"] == "Encoder.embed, JPEGs from disk"
    assert last["bound by"].startswith(("the network", "the transfer", "decoding"))


@pytest.mark.slow
def test_the_runs_beside_published_ones_stop_and_go_on(script, data, tmp_path, capsys):
    shutil.copytree(data, tmp_path / "photos")
    gpu_runs = script("gpu_runs")
    given = ["--work", str(tmp_path / "work"), "--imagenette", str(tmp_path / "photos"), "--device", "cpu"]
    given += ["--only", "nnclr_200", "simclr_200"]
    tiny = [
        *("channels=4,4,8,8", "projection_hidden=16", "projection_dim=8", "image_size=32", "pack_size=32"),
        *("eval_size=32", "batch_size=8", "epochs=2", "precision=fp32", "queue_size=32", "warmup_epochs=1"),
    ]
    given += [part for one in tiny for part in ("--set", one)]
    assert gpu_runs.main([*given, "--minutes", "0.5"]) == 130  # no more than is kept for saving
    assert not (tmp_path / "work").exists()
    assert gpu_runs.main([*given, "--minutes", "20"]) == 0
    _, *found = rows(tmp_path / "work", "gpu_runs")
    assert [row["run"] for row in found] == ["nnclr_200", "simclr_200"]
    assert all(0 <= row["200-NN"] <= 1 for row in found)
    (tmp_path / "work" / "gpu_runs.md").unlink()
    assert gpu_runs.main([*given, "--minutes", "0.5", "--seeds", "2"]) == 130
    assert len(rows(tmp_path / "work", "gpu_runs")) == 3, "what is done is tabulated, whatever is left"


def test_the_list_of_runs_names_what_is_published(script, capsys):
    assert script("gpu_runs").main(["--list"]) == 0
    assert "80.9" in capsys.readouterr().out


def test_the_comparison_with_lightly_says_that_it_is_missing(script, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightly", None)
    monkeypatch.setitem(sys.modules, "lightly.loss", None)
    monkeypatch.delitem(sys.modules, "pretrain_vs_lightly", raising=False)
    with pytest.raises(SystemExit, match=r"needs lightly.*leave it out"):
        script("pretrain_vs_lightly")
