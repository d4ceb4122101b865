"""Tests of a CUDA device. NNCLR_GPU_DEVICE=cpu runs their code on the CPU:

    NNCLR_GPU_DEVICE=cpu python -m pytest -m gpu tests/gpu

Tests of features that only a GPU has are skipped there. The images are generated here, so that these tests need
only the packages of training.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image


@pytest.fixture(scope="session")
def device() -> str:
    """Return "cuda" or the value of NNCLR_GPU_DEVICE; skip without such a device."""
    wanted = os.environ.get("NNCLR_GPU_DEVICE", "cuda")
    if wanted == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    return wanted


@pytest.fixture
def cuda(device) -> torch.device:
    """Return the GPU; skip on a CPU."""
    if device == "cpu":
        pytest.skip("needs a GPU")
    return torch.device(device)


@pytest.fixture(scope="session")
def blobs(tmp_path_factory) -> Path:
    """Write 64 images of colored noise in two class folders."""
    folder, rng = tmp_path_factory.mktemp("blobs"), np.random.default_rng(0)
    for label in ("a", "b"):
        (folder / label).mkdir()
        for i in range(32):
            noise = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            Image.fromarray(noise).resize((64, 64), Image.Resampling.BICUBIC).save(folder / label / f"{i}.jpg")
    return folder


@pytest.fixture
def full_precision():
    """Disable TF32 during a test."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
