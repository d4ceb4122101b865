"""What must hold on a CUDA device as it does on the CPU.

    make gpu            # or, uninstalled: python -m pytest -m gpu tests/gpu

Pictures are made here, so that these tests need no package beyond what training needs.
"""

import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nnclr_hub.encoder.encoder import load_encoder
from nnclr_hub.method import SupportSet
from training import pretrain as program
from training.checkpoint import load_checkpoint
from training.data.augment import AUGMENTATIONS, make_view
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
            make_view(images.to(device), torch.ones(32), view, 64, torch.Generator().manual_seed(3)).cpu()
            for device in ("cpu", "cuda")
        )
        torch.testing.assert_close(cpu, gpu, atol=2e-3, rtol=0)


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
