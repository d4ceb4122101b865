"""The examples in Lightning and in a Hugging Face Trainer look up, step and enqueue in the paper's order."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from nnclr_hub.method import SupportSet

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 60 // 8


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """Return a list to which each lookup, optimizer step and enqueue of images adds its name."""
    seen: list[str] = []
    for name in ("lookup", "enqueue"):
        original = getattr(SupportSet, name)

        def noting(self, z, ids=None, *rest, name=name, original=original):
            assert ids.shape == z.shape[:1]
            seen.append(name)
            return original(self, z, ids, *rest)

        monkeypatch.setattr(SupportSet, name, noting)
    hook = register_optimizer_step_post_hook(lambda *_: seen.append("step"))
    yield seen
    hook.remove()


@pytest.mark.parametrize(("name", "package"), [("nnclr_lightning", "lightning"), ("nnclr_hf_trainer", "accelerate")])
def test_an_example_names_the_package_that_it_lacks(monkeypatch, name, package):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{name}.py"))
    assert f"pip install {'lightning' if package == 'lightning' else 'transformers accelerate'}" in str(ended.value)


@pytest.mark.slow  # the trainers take seconds to import
@pytest.mark.filterwarnings("ignore")  # those of the trainers
@pytest.mark.parametrize("name", ["nnclr_lightning", "nnclr_hf_trainer"])
def test_a_trainer_runs_the_method_in_its_order(photos, tmp_path, monkeypatch, events, name):
    pytest.importorskip({"nnclr_lightning": "lightning", "nnclr_hf_trainer": "accelerate"}[name])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = f"{photos} --out {tmp_path / 'out'} --epochs 1 --batch 8 --size 32 --queue 20".split()
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()
    assert events == ["lookup", "lookup", "step", "enqueue"] * STEPS
    if name == "nnclr_hf_trainer":
        from transformers import AutoModel

        assert AutoModel.from_pretrained(tmp_path / "out").config.hidden_size == 192
    else:
        assert "layer4.1.conv2.weight" in torch.load(tmp_path / "out", weights_only=True)


@pytest.mark.slow
def test_two_processes_of_the_hugging_face_trainer_are_one_run(photos, tmp_path):
    pytest.importorskip("accelerate")
    words = f"{photos} --out {tmp_path / 'out'} --epochs 1 --batch 8 --size 32 --queue 20".split()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(EXAMPLES / "nnclr_hf_trainer.py"), *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("written") == 1
