"""What must hold on a CUDA device as it does on the CPU.

    make gpu            # or, uninstalled: python -m pytest -m gpu tests/gpu

Pictures are made here, so that these tests need no package beyond what training needs.
"""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nnclr_hub.encoder.encoder import load_encoder
from nnclr_hub.errors import OutOfMemory
from nnclr_hub.method import METHODS, Learner, PredictionHead, ProjectionHead, SupportSet
from training import step as program
from training.checkpoint import load_checkpoint
from training.data.augment import AUGMENTATIONS, make_view
from training.data.pixel_ops import compiled
from training.pretrain import pretrain
from training.recipes import find_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

TINY = ["channels=8,8,16,16", "projection_hidden=32", "projection_dim=16", "batch_size=16", "epochs=2", "log_every=1"]


@pytest.fixture(scope="module")
def blobs(tmp_path_factory) -> Path:
    """64 pictures of coloured noise in two class folders."""
    folder, rng = tmp_path_factory.mktemp("blobs"), np.random.default_rng(0)
    for label in ("a", "b"):
        (folder / label).mkdir()
        for i in range(32):
            noise = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((64, 64), Image.Resampling.BICUBIC).save(folder / label / f"{i}.png")
    return folder


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_augmentation_is_the_same_on_both_devices(name):
    images = torch.randint(0, 256, (32, 96, 96, 3), dtype=torch.uint8)
    for view in AUGMENTATIONS[name]:
        cpu, gpu = (
            make_view(images.to(device), torch.ones(32), replace(view, size=64), torch.Generator().manual_seed(3)).cpu()
            for device in ("cpu", "cuda")
        )
        torch.testing.assert_close(cpu, gpu, atol=2e-3, rtol=0)


@pytest.mark.parametrize("source", ["random:resnet18", "random:vit_tiny"])
def test_attention_is_the_same_on_both_devices(source, blobs):
    picture = next(blobs.rglob("*.png"))
    cpu, gpu = (load_encoder(source, device=device).attention(picture).values for device in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu, cpu, rtol=0, atol=0.01 * np.abs(cpu).max())  # convolutions may be in TF32


def test_lookup_is_in_float32_under_autocast():
    support = SupportSet(65_536, 256).cuda()
    z = torch.randn(512, 256, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        inside = support.lookup(z)
    assert torch.equal(inside.index, support.lookup(z).index)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_run_goes_from_start_to_encoder(blobs, tmp_path, precision):
    recipe = find_recipe("small_cpu").with_settings([*TINY, f"precision={precision}"])
    assert pretrain("small_cpu", recipe, [blobs], tmp_path / "run", device="cuda").finished
    paths = sorted(blobs.rglob("*.png"))
    on_cpu, on_gpu = (load_encoder(tmp_path / "run" / "encoder", device=d).embed(paths) for d in ("cpu", "cuda"))
    assert (on_cpu * on_gpu).sum(axis=1).min() > 0.999


def test_a_run_resumes_on_the_device(blobs, tmp_path, monkeypatch):
    """Stopped on the CPU in the middle of an epoch, finished on the GPU."""
    recipe = find_recipe("small_cpu").with_settings([*TINY, "precision=fp32"])
    original = program.measure_step

    def stopping(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(program, "measure_step", stopping)
        assert pretrain("small_cpu", recipe, [blobs], tmp_path / "run", device="cpu").step == 1
    outcome = pretrain("small_cpu", recipe, [blobs], tmp_path / "run", resume=True, device="cuda")
    assert outcome.finished
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    assert all(value.isfinite().all() for value in checkpoint["learner"].values())


def small_learner(method: str) -> Learner:
    torch.manual_seed(0)
    row = METHODS[method]
    backbone = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
    )
    prediction = PredictionHead(8, 16) if row.prediction != "none" else None
    support = SupportSet(64, 8) if row.target == "neighbour" else None
    return Learner(backbone, row, ProjectionHead(32, 16, 8), prediction, support)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_step_of_every_method_is_the_cpus(method):
    """Loss and gradients in float32, without TF32."""
    views = [torch.randn(16, 3, 12, 12, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    results = []
    for device in ("cpu", "cuda"):
        learner = small_learner(method).to(device)
        loss = learner([view.to(device) for view in views]).loss
        loss.backward()
        results.append([loss.detach().cpu(), *(p.grad.cpu() for p in learner.parameters() if p.grad is not None)])
    for cpu, gpu in zip(*results, strict=True):
        torch.testing.assert_close(gpu, cpu, atol=1e-4, rtol=1e-3)


def test_the_lookup_at_the_papers_sizes_needs_little_memory():
    """B = 4096, M = 98,304: the whole matrix of similarities would take 1.6 GB."""
    support, z = SupportSet(98_304, 256).cuda(), torch.randn(4096, 256, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    support.lookup(z, ids=torch.arange(4096, device="cuda"))
    assert torch.cuda.max_memory_allocated() - before < 300 * 2**20


def test_compiled_augmentation_equals_eager():
    images = torch.randint(0, 256, (32, 96, 96, 3), dtype=torch.uint8, device="cuda")
    view = replace(AUGMENTATIONS["byol"][1], size=64, blur=0.5)
    eager, fused = (
        make_view(images, torch.ones(32), view, torch.Generator().manual_seed(3), *operations)
        for operations in ((), (compiled(),))
    )
    torch.testing.assert_close(fused, eager, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    "settings", [["compile=true"], ["chunk=5"], ["residency=host"], ["local_crops=2", "local_size=16"]]
)
def test_options_run_on_the_device(blobs, tmp_path, settings):
    recipe = find_recipe("small_cpu").with_settings([*TINY, "method=momentum_nnclr", *settings])
    assert pretrain("small_cpu", recipe, [blobs], tmp_path / "run", device="cuda").finished


def test_a_batch_that_does_not_fit_names_one_that_does(blobs, tmp_path):
    """A real shortage: the process is allowed next to nothing of the device."""
    recipe = find_recipe("small_cpu").with_settings([*TINY, "image_size=512", "pack_size=64", "channels=64,64,64,64"])
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.004)
    try:
        with pytest.raises(OutOfMemory, match="--set batch_size="):
            pretrain("small_cpu", recipe, [blobs], tmp_path / "run", device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
