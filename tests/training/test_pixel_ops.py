"""Each operation on a batch equals torchvision's on every image, for given parameters."""

from itertools import permutations

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as functional
import torchvision.transforms.v2.functional as reference
from torchvision.transforms import InterpolationMode

from training.data import pixel_ops

BATCH = 6


@pytest.fixture
def images() -> torch.Tensor:
    """(6, 3, 40, 40) float in [0, 1]: noise, and one image each of gray, black and white."""
    images = torch.rand(BATCH, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    images[3], images[4], images[5] = 0.4, 0.0, 1.0
    return images


def test_grayscale_equals_torchvision(images):
    torch.testing.assert_close(
        pixel_ops.grayscale(images), reference.rgb_to_grayscale(images, num_output_channels=3), atol=1e-6, rtol=0
    )


def test_the_channels_of_a_grayscale_image_have_separate_memory(images):
    """Otherwise an in-place change of one channel would change all of them."""
    gray = pixel_ops.grayscale(images)
    before = gray.clone()
    gray[0, 0] = 7
    assert torch.equal(gray[0, 1:], before[0, 1:])
    assert torch.equal(gray[1:], before[1:])


def test_solarize_equals_torchvision(images):
    assert torch.equal(pixel_ops.solarize(images), reference.solarize(images, threshold=0.5))


@pytest.mark.parametrize("taps", [3, 5, 23])
def test_blur_equals_torchvision(images, taps):
    sigma = torch.tensor([0.1, 0.5, 1.0, 1.5, 2.0, 0.7])
    got = pixel_ops.gaussian_blur(images, sigma, taps)
    for i in range(BATCH):
        want = reference.gaussian_blur(images[i], [taps, taps], [float(sigma[i])] * 2)
        torch.testing.assert_close(got[i], want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("out", [8, 24, 50])
def test_resized_crop_equals_torchvision_for_whole_pixel_boxes(out):
    """Bicubic with antialiasing, when shrinking and when enlarging, mirrored or not."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (BATCH, 40, 40, 3), dtype=np.uint8))
    boxes = torch.tensor(
        [[0, 0, 40, 40], [3, 5, 20, 30], [10, 0, 8, 8], [39, 39, 1, 1], [0, 20, 40, 5], [7, 7, 16, 16]]
    )
    flip = torch.tensor([False, True, False, True, True, False])
    got = pixel_ops.resized_crop(images.float(), boxes.float(), flip, out)
    for i in range(BATCH):
        top, left, height, width = boxes[i].tolist()
        image = images[i].permute(2, 0, 1).float() / 255
        want = reference.resized_crop(
            image, top, left, height, width, [out, out], InterpolationMode.BICUBIC, antialias=True
        )
        want = reference.horizontal_flip(want) if flip[i] else want
        torch.testing.assert_close(got[i], want.clamp(0, 1), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_compiled_crop_that_shrinks_is_the_same():
    """torch 2.11 compiled a number of taps computed with fractions to a different number."""
    start, length = torch.rand(4) * 5, 80 + torch.rand(4) * 10
    compiled = torch.compile(pixel_ops._resampling, dynamic=True)
    want, got = (one(start, length, 96, 64) for one in (pixel_ops._resampling, compiled))
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


# ---- color jitter


OPERATIONS = (  # by number
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)
ORDERS = [*permutations(range(4)), (-1, -1, -1, -1)]  # every order, and no jitter


@pytest.fixture
def draws() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (100, 3, 24, 24) with gray and black ones among them, four of each order, and strong amounts."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(100, 3, 24, 24, generator=generator)
    images[::10], images[5::10] = images[::10, :1].expand(-1, 3, -1, -1), 0.0
    amounts = torch.rand(100, 4, generator=generator) * 2  # 0 removes all contrast, 2 exceeds the range
    amounts[:, 3] = amounts[:, 3] / 2 - 0.5
    return images, torch.tensor(ORDERS).repeat(4, 1), amounts


def torchvisions(image: torch.Tensor, turns: list[int], amounts: list[float]) -> torch.Tensor:
    """Apply torchvision's operations to one image in their order."""
    for number in sorted(range(4), key=turns.__getitem__):
        if turns[number] >= 0:
            image = OPERATIONS[number](image, amounts[number])
    return image


@pytest.mark.parametrize("jitter", [pixel_ops.jitter_rows, pixel_ops.jitter_all])
def test_every_order_equals_torchvision(draws, jitter):
    images, turns, amounts = draws
    rows = zip(images, turns.tolist(), amounts.tolist(), strict=True)
    want = torch.stack([torchvisions(*row) for row in rows])
    torch.testing.assert_close(jitter(images.clone(), turns, amounts), want, atol=2e-5, rtol=0)


def test_the_order_of_the_operations_matters(draws):
    """Otherwise the test above would pass for any order."""
    images, turns, _ = draws
    same = images[1:2].expand(len(turns), -1, -1, -1)
    made = pixel_ops.jitter_all(same, turns, torch.tensor([1.4, 1.3, 0.5, 0.1]).expand(len(turns), -1))
    none = (turns < 0).all(dim=1)
    assert torch.equal(made[none], same[none])
    assert len(made.flatten(1).mul(1e3).round().unique(dim=0)) == len(ORDERS)
