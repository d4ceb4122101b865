"""examples/starters.py: degraded views, batches from one folder, and views that depend on the folder."""

import io
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from packed_batches import pack_of
from PIL import Image
from scipy.fft import dctn, idctn
from tiny_runs import FAST, nnclr

from nnclr_hub.cli.programs import load_program

PLUGIN = Path(__file__).parents[2] / "examples" / "starters.py"


@pytest.fixture(scope="module")
def starters():
    """Return the plug-in; what it registers is removed afterwards."""
    views, batches = (load_program("training", name) for name in ("data.views", "data.batches"))
    registries = [views.AUGMENTATIONS, batches.BATCHES]
    before = [dict(one) for one in registries]
    load_program("training", "plugins").load_plugins([PLUGIN])
    yield next(module for name, module in sys.modules.items() if name.startswith("nnclr_plugin_starters"))
    for registry, old in zip(registries, before, strict=True):
        registry.clear()
        registry.update(old)


def test_blocks_are_rounded_as_in_jpeg(starters):
    """scipy's cosine transform of each block, and the table that Pillow writes at quality 50, scaled like libjpeg."""
    Image.new("L", (8, 8)).save(file := io.BytesIO(), "JPEG", quality=50)
    table = np.array(Image.open(file).quantization[0], np.float64).reshape(8, 8)  # type: ignore[attr-defined]
    x = torch.rand(3, 2, 20, 20, generator=torch.Generator().manual_seed(0))
    quality = (20.0, 50.0, 95.0)
    made = starters.jpeg_like(x, torch.tensor(quality))
    for image, of, q in zip(made, x, quality, strict=True):
        steps = np.maximum(1, table * (5000 / q if q < 50 else 200 - 2 * q) / 100)
        for channel, before in zip(image, of, strict=True):
            want = np.pad(before.double().numpy() * 255 - 128, (0, 4), mode="edge")
            for top, left in product(range(0, 24, 8), repeat=2):
                block = want[top : top + 8, left : left + 8]
                block[:] = idctn(np.round(dctn(block, norm="ortho") / steps) * steps, norm="ortho")
            np.testing.assert_allclose(channel, np.clip((want[:20, :20] + 128) / 255, 0, 1), atol=1e-5)


def test_shrinking_takes_the_mean_of_areas_and_enlarging_is_bilinear(starters):
    x = torch.rand(3, 2, 20, 20, generator=torch.Generator().manual_seed(0))
    made = starters.shrink_and_enlarge(x, torch.tensor([0.63, 1.0, 0.01]))
    for image, of, small in zip(made, x, (13, 20, 2), strict=True):
        down = of.repeat_interleave(small, 1).unflatten(1, (small, 20)).mean(2)
        down = down.repeat_interleave(small, 2).unflatten(2, (small, 20)).mean(3)
        want = torch.nn.functional.interpolate(down[None], 20, mode="bilinear")[0]
        torch.testing.assert_close(image, want, atol=1e-5, rtol=0)
    some = starters.degrade(torch.rand(400, 1, 16, 16), torch.Generator().manual_seed(0))
    same = starters.degrade(some, torch.Generator().manual_seed(0)) == some
    assert same.flatten(1).all(dim=1).float().mean() == pytest.approx(0.7, abs=0.06)


@pytest.fixture
def batches(starters):
    """Return batches of 20 from folders of 400, 200 and 47 images."""
    names = ("image_pack", "views", "batches")
    packs, views, batches = (load_program("training", f"data.{name}") for name in names)
    folders, cpu = np.array([400, 200, 47]), torch.device("cpu")
    pixels = packs.PackedPixels(pack_of(np.zeros((647, 8, 8, 3), np.uint8)), cpu)
    shapes = [*(replace(one, size=16) for one in views.AUGMENTATIONS["byol"]), views.View(size=8, scale=(0.05, 0.2))]
    arguments = {"views": lambda step: shapes, "where": cpu}
    every = np.full(647, -1)
    kinds = (starters.ByFolder, batches.Batches)
    return [kind(pixels, every, batches.Order(folders, 20, 0), **arguments) for kind in kinds]


def test_batches_come_mostly_from_one_folder(batches):
    """Three quarters of a batch share a folder while it has unused images; no image occurs twice."""
    own, _ = batches
    origin = np.repeat([0, 1, 2], [400, 200, 47])
    rows = np.stack([own.draw(step).rows for step in range(32)])
    assert len(set(rows.ravel().tolist())) == 640
    largest = [np.bincount(origin[row]).max() for row in rows]
    assert sum(count >= 15 for count in largest) >= 20 + 10 + 2
    assert set(own.draw(32).rows.tolist()) != set(rows[0].tolist()), "another order in the next epoch"


def test_views_keep_colors_and_wholes_by_folder(batches, starters, monkeypatch):
    monkeypatch.setattr(starters, "LEAST_CROP", (0.0, 0.6, 0.0))
    monkeypatch.setattr(starters, "KEEP_COLOR", (0.0, 0.0, 1.0))
    own, plain = batches
    for step in range(32):
        drawn, before = own.draw(step), plain.draw(step).numbers
        folder = np.searchsorted([400, 600], drawn.rows, side="right")
        torch.testing.assert_close(drawn.numbers[:, folder == 0], before[:, folder == 0])
        torch.testing.assert_close(drawn.numbers[2, folder == 1], before[2, folder == 1])  # a small view
        area = 0.08 + 0.92 * drawn.numbers[:2, folder == 1, :10]
        assert (area >= 0.6 - 1e-6).all()
        hue = drawn.numbers[:, folder == 2][:, :, starters.augment.SATURATION_AND_HUE]
        assert (hue == 0.5).all()


def test_a_run_uses_them(starters, data, tmp_path):
    settings = [*FAST, "epochs=1", "checkpoint_every=1", "augmentation=degraded", "batches=by_folder"]
    words = [word for one in settings for word in ("--set", one)]
    call = ("pretrain", "small_cpu", "--data", data, "--out", tmp_path / "run", "--plugin", PLUGIN, "--device", "cpu")
    code, _, err = nnclr(*call, *words)
    assert code == 0, err
    code, _, err = nnclr("pretrain", "small_cpu", "--data", data, "--out", tmp_path / "b", "--set", "batches=none")
    assert code == 2
    assert "by_folder" in err
