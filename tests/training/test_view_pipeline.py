"""Whole views of many images are distributed like those of torchvision's transforms with the paper's parameters."""

from collections import Counter
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from image_views import make_view
from scipy.stats import ks_2samp
from torchvision.transforms import v2

from training.data import augment
from training.data.augment import blur_taps
from training.data.views import AUGMENTATIONS, IMAGENET_MEAN, IMAGENET_STD, View

SIZE, VIEWS = 32, 900
LEAST_P = 1e-3  # of a test that both samples have one distribution; the seeds are fixed


def scene() -> torch.Tensor:
    """Return a colored image without symmetry, with sharp edges: (3, 64, 64) uint8."""
    rows = torch.arange(64.0)
    waves = torch.stack([torch.sin(rows[:, None] / a) * torch.cos(rows[None] / b) for a, b in ((3, 9), (7, 5), (4, 6))])
    ramp = torch.linspace(-1, 1, 64)[None, None] * torch.tensor([0.9, 0.2, -0.6])[:, None, None]
    checks = ((rows[:, None] // 4 + rows[None] // 4) % 2)[None] * torch.tensor([0.5, -0.3, 0.2])[:, None, None]
    return ((waves + ramp + checks + 2.2) / 4.4 * 255).clamp(0, 255).to(torch.uint8)


def torchvision_view(view: View) -> v2.Transform:
    """Return BYOL's transform (Grill et al., appendix B) with the parameters of a view."""
    jitter = v2.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)
    blur = v2.GaussianBlur(blur_taps(view.size), view.sigma)
    return v2.Compose(
        [
            v2.RandomResizedCrop(view.size, view.scale, view.ratio, v2.InterpolationMode.BICUBIC),
            v2.Lambda(lambda pixels: pixels.clamp(0, 1)),
            v2.RandomHorizontalFlip(view.flip),
            v2.RandomApply([jitter], view.jitter),
            v2.RandomGrayscale(view.gray),
            v2.RandomApply([blur], view.blur),
            v2.RandomSolarize(0.5, view.solarize),
            v2.Normalize(view.mean, view.std),
        ]
    )


def statistics(views: torch.Tensor) -> dict[str, np.ndarray]:
    """Return numbers of each view that its crop, flip, colors, sharpness and inversion change."""
    half = SIZE // 2
    edges = (views[..., 1:] - views[..., :-1]).abs().mean(dim=(1, 2, 3))
    spread = views.amax(dim=1) - views.amin(dim=1)
    numbers = {
        "red": views[:, 0].mean(dim=(1, 2)),
        "blue": views[:, 2].mean(dim=(1, 2)),
        "contrast": views.std(dim=(1, 2, 3)),
        "largest": views.amax(dim=(1, 2, 3)),
        "left to right": (views[..., :half] - views[..., half:])[:, 0].mean(dim=(1, 2)),
        "edges": edges / views.std(dim=(1, 2, 3)),
        "saturation": spread.mean(dim=(1, 2)),
    }
    return {name: value.numpy().round(4) for name, value in numbers.items()}  # equal extremes stay equal


@pytest.mark.parametrize(("name", "number"), [("byol", 0), ("byol", 1), ("simclr", 0)])
def test_views_are_distributed_like_torchvisions(name, number):
    view, image = replace(AUGMENTATIONS[name][number], size=SIZE), scene()
    squares = image.permute(1, 2, 0).expand(VIEWS, -1, -1, -1)
    ours = make_view(squares, torch.ones(VIEWS), view, torch.Generator().manual_seed(3))
    torch.manual_seed(3)
    transform, pixels = torchvision_view(view), image.float() / 255
    theirs = torch.stack([transform(pixels) for _ in range(VIEWS)])
    one, other = statistics(ours), statistics(theirs)
    p = {name: ks_2samp(one[name], other[name]).pvalue for name in one}
    assert min(p.values()) > LEAST_P, p


@pytest.mark.parametrize(("form", "jitter"), [("rows", "jitter_rows"), ("all", "jitter_all")])
def test_jitter_is_drawn_for_each_image_in_its_own_order(form, jitter, monkeypatch):
    drawn = []

    def watch(x, places, amounts):
        drawn.append((places, amounts))
        return x

    monkeypatch.setattr(augment, jitter, watch)
    count, view = 4800, View(size=8)
    images = torch.zeros(count, 16, 16, 3, dtype=torch.uint8)
    change = {"rows": augment.change_rows, "all": augment.change_all}[form]
    make_view(images, torch.ones(count), view, torch.Generator().manual_seed(0), change)
    [(places, amounts)] = drawn
    chosen = places[:, 0] >= 0
    assert chosen.float().mean() == pytest.approx(view.jitter, abs=0.02)
    orders = Counter(tuple(row) for row in places[chosen].tolist())
    assert set(orders) == set(permutations(range(4)))
    assert min(orders.values()) > 0.7 * chosen.sum() / 24
    for column, (center, spread) in enumerate(((1, 0.4), (1, 0.4), (1, 0.2), (0, 0.1))):
        values = amounts[:, column] - center
        assert values.abs().max() <= spread + 1e-6
        assert values.std() == pytest.approx(spread / 3**0.5, rel=0.05), "uniform"


def test_the_default_normalization_is_that_of_imagenet():
    assert (View().mean, View().std) == (IMAGENET_MEAN, IMAGENET_STD)
