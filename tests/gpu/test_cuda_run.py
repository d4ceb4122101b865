"""Whole runs on a CUDA device: precision, options, resume, several processes, too little memory, the encoder.

make gpu            # or, uninstalled: python -m pytest -m gpu tests/gpu
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import stop_in_step

from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import OutOfMemory
from training.checkpoint import load_checkpoint
from training.pretrain import pretrain
from training.recipes import find_recipe

# warnings of torch on a GPU, such as its check for synchronization being a prototype, must not fail the tests
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[2]
TINY = ["channels=8,8,16,16", "projection_hidden=32", "projection_dim=16", "batch_size=16", "epochs=2", "log_every=1"]


def recipe(*settings):
    return find_recipe("small_cpu").with_settings([*TINY, *settings])


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_a_run_writes_an_encoder(blobs, tmp_path, precision, device):
    assert pretrain(recipe(f"precision={precision}"), [blobs], tmp_path / "run", device=device).finished
    paths = sorted(blobs.rglob("*.jpg"))
    on_cpu, on_gpu = (load_encoder(tmp_path / "run" / "encoder", device=d).embed(paths) for d in ("cpu", device))
    assert (on_cpu * on_gpu).sum(axis=1).min() > 0.999


@pytest.mark.parametrize(
    "settings",
    [
        ["compile=true", "local_crops=2", "local_size=32", "early_size=32", "early_share=0.5"],
        ["chunk=5"],
        ["residency=host"],
        ["cut_from=originals", "workers=2", "local_crops=2", "local_size=32"],
        ["local_crops=2", "local_size=32"],
        ["optimizer=lars"],
        [
            "optimizer=adamw",
            "clip=1",
            "backbone=test_vit",
            "channels=",
            "image_size=160",
            "pack_size=160",
            "eval_size=160",
        ],
        ["callbacks=tensorboard", "support_set=random_replacement"],
        ["support_set=current_encoder"],
    ],
    ids=" ".join,
)
def test_options_run_on_the_device(blobs, tmp_path, settings, device):
    chosen = recipe("method=momentum_nnclr", "encoder=momentum", *settings)
    assert pretrain(chosen, [blobs], tmp_path / "run", device=device).finished
    vectors = load_encoder(tmp_path / "run" / "encoder", device=device).embed(sorted(blobs.rglob("*.jpg"))[:3])
    assert np.isfinite(vectors).all()


@pytest.mark.parametrize("first", ["cpu", "the device"])
def test_a_run_continues_on_another_device(blobs, tmp_path, monkeypatch, device, first):
    """Start on the CPU and continue on the GPU in the middle of an epoch, or the other way round."""
    order = ("cpu", device) if first == "cpu" else (device, "cpu")
    with monkeypatch.context() as patch:
        stop_in_step(1, patch)
        outcome = pretrain(recipe("precision=fp32"), [blobs], tmp_path / "run", device=order[0])
    assert outcome.step == 1
    run = pretrain(recipe("precision=fp32"), [blobs], tmp_path / "run", resume=True, device=order[1])
    assert run.finished
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert all(value.isfinite().all() for value in checkpoint["learner"].values())


def test_a_resumed_run_nearly_equals_one_that_never_stopped(blobs, tmp_path, monkeypatch, device, full_precision):
    """A GPU may add numbers in another order."""
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: None)
    deterministic = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        pretrain(recipe("precision=fp32"), [blobs], tmp_path / "whole", device=device)
        with monkeypatch.context() as patch:
            stop_in_step(3, patch)
            pretrain(recipe("precision=fp32"), [blobs], tmp_path / "cut", device=device)
        pretrain(recipe("precision=fp32"), [blobs], tmp_path / "cut", resume=True, device=device)
    finally:
        torch.backends.cudnn.deterministic = deterministic
    whole, cut = (load_checkpoint(tmp_path / name)["learner"] for name in ("whole", "cut"))
    for name in whole:
        torch.testing.assert_close(
            cut[name], whole[name], atol=5e-3, rtol=5e-2, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_every_collective_of_a_distributed_step_runs(device):
    """NCCL allows one process per GPU, hence a group of one; two processes are tested on the CPU."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests" / "one_rank.py"), device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("backend", ["torch", "torch-bf16", "compile-bf16"])
def test_a_backend_gives_the_cpus_vectors_for_any_batch(blobs, device, backend, make_model):
    folder, paths = make_model(), sorted(blobs.rglob("*.jpg"))
    want = load_encoder(folder, device="cpu").embed(paths)
    encoder = load_encoder(folder, device=device, backend=backend)
    for count in (1, 3, 64):
        got = encoder.embed(paths[:count])
        assert (got * want[:count]).sum(axis=1).min() > 0.999


@pytest.mark.parametrize("source", ["random:resnet18", "random:vit_tiny"])
def test_attention_is_the_same_on_both_devices(blobs, source, device, full_precision):
    image = next(path for path in sorted(blobs.rglob("*")) if path.is_file())
    cpu, other = (load_encoder(source, device=name).attention(image).values for name in ("cpu", device))
    np.testing.assert_allclose(other, cpu, rtol=0, atol=1e-4 * np.abs(cpu).max())


def test_out_of_memory_names_a_batch_that_fits(blobs, tmp_path, cuda):
    """The process may use only a small part of the device's memory."""
    chosen = recipe("image_size=512", "pack_size=512", "eval_size=512", "channels=64,64,64,64")
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(cuda)[1]
    held = torch.cuda.memory_reserved(cuda)  # memory of other tests, such as CUDA graphs, which cannot be freed
    torch.cuda.set_per_process_memory_fraction((held + 700 * 2**20) / total)
    try:
        with pytest.raises(OutOfMemory, match=r"batch_size=.*residency=host"):
            pretrain(chosen, [blobs], tmp_path / "run", device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
