"""Each operation on a batch equals torchvision's on every image, for given parameters."""

import numpy as np
import pytest
import torch
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
