"""The random parameters of the augmentation: per image, in range, repeatable."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from image_views import make_view, squashed, stored
from torchvision.transforms.functional import normalize, rgb_to_grayscale, solarize

from training.data.augment import (
    NUMBERS,
    blur_taps,
    change_all,
    colors_and_blur,
    make_views,
    sample_numbers,
)
from training.data.cutting import CROP_NUMBERS, crop_boxes
from training.data.views import AUGMENTATIONS, View
from training.recipes import Recipe


def torchvisions_box(high, wide, scale, ratio, numbers) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params for one image, with the given random numbers."""
    for attempt in range(10):
        area = high * wide * (scale[0] + (scale[1] - scale[0]) * numbers[attempt])
        shape = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * numbers[10 + attempt])
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= wide and 0 < h <= high:
            return int(numbers[20] * (high - h + 1)), int(numbers[21] * (wide - w + 1)), h, w
    w, h = wide, high
    if wide / high < ratio[0]:
        h = max(1, round(wide / ratio[0]))
    elif wide / high > ratio[1]:
        w = max(1, round(high * ratio[1]))
    return (high - h) // 2, (wide - w) // 2, h, w


def test_boxes_are_those_of_torchvisions_algorithm():
    """Images of different sizes in one batch, also those that no crop of the largest areas fits."""
    sizes = np.array([(375, 500), (500, 375), (64, 64), (7, 90), (90, 7), (1, 1), (300, 100)] * 40)
    numbers = np.random.default_rng(0).random((len(sizes), CROP_NUMBERS))
    for scale, ratio in (((0.9, 1.0), (1.4, 2.5)), ((0.08, 1.0), (3 / 4, 4 / 3))):
        pairs = zip(sizes.tolist(), numbers, strict=True)
        want = np.array([torchvisions_box(*size, scale, ratio, row) for size, row in pairs])
        assert np.array_equal(crop_boxes(sizes, np.array(scale), np.array(ratio), numbers), want)


def test_images_of_extreme_proportions_give_finite_views():
    """An image of 1 x 3000 pixels, squashed to a square, has crops a fraction of a pixel high."""
    images = torch.randint(0, 256, (64, 96, 96, 3), dtype=torch.uint8)
    for aspect in (1 / 3000, 1 / 50, 50.0, 3000.0):
        made = make_view(images, torch.full((64,), aspect), View(size=48), torch.Generator().manual_seed(0))
        assert made.isfinite().all()


def test_every_image_of_a_batch_gets_its_own_view():
    """Three copies of an image give three views; torchvision samples once per batch."""
    image = torch.randint(0, 256, (1, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for first, second in AUGMENTATIONS.values():
        for view in (first, second):
            made = make_view(
                image.expand(3, -1, -1, -1), torch.ones(3), replace(view, size=24), torch.Generator().manual_seed(0)
            )
            assert made.shape == (3, 3, 24, 24)
            assert not torch.equal(made[0], made[1])
            assert not torch.equal(made[1], made[2])


def test_a_batch_that_is_grayscale_as_a_whole_is_blurred_and_solarized_like_any_other():
    """Compare with the same random numbers without grayscale, converted by torchvision."""
    images = torch.randint(0, 256, (16, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    plain = View(24, jitter=0.0, blur=0.5, solarize=0.0, mean=(0, 0, 0), std=(1, 1, 1))
    made, colored = (
        make_view(images, torch.ones(16), replace(plain, gray=gray), torch.Generator().manual_seed(1))
        for gray in (1.0, 0.0)
    )
    torch.testing.assert_close(made, rgb_to_grayscale(colored, num_output_channels=3), atol=1e-5, rtol=0)
    solarized = make_view(
        images, torch.ones(16), replace(plain, gray=1.0, solarize=0.5), torch.Generator().manual_seed(1)
    )
    changed = torch.tensor([not torch.equal(one, other) for one, other in zip(solarized, made, strict=True)])
    assert 0 < changed.sum() < 16
    torch.testing.assert_close(solarized[changed], solarize(made, 0.5)[changed])


def test_the_augmentations_have_the_papers_parameters_and_crop_only_only_crops():
    first, second = AUGMENTATIONS["byol"]
    assert (first.blur, first.solarize, second.blur, second.solarize) == (1.0, 0.0, 0.1, 0.2)
    assert all((view.brightness, view.hue, view.blur) == (0.8, 0.2, 0.5) for view in AUGMENTATIONS["simclr"])
    assert all(view.blur == 0 for view in AUGMENTATIONS["cifar"])
    images = torch.randint(0, 256, (8, 32, 32, 3), dtype=torch.uint8)
    whole = replace(AUGMENTATIONS["crop_only"][0], size=32, scale=(1.0, 1.0), ratio=(1.0, 1.0))
    numbers = torch.rand(1, 8, NUMBERS)
    numbers[0, ::2] = 0.0  # a probability of 0 excludes it
    [made] = make_views(squashed(images, torch.ones(8), [whole], numbers), [whole], numbers)
    want = normalize(images.permute(0, 3, 1, 2) / 255, whole.mean, whole.std)
    torch.testing.assert_close(made, want, atol=1e-5, rtol=0)


def test_a_smaller_copy_gives_the_views_of_the_original():
    """Boxes have the original's coordinates, and the copy fills only a part of its array."""
    rows, columns = torch.arange(96.0)[:, None], torch.arange(64.0)[None]
    image = torch.stack(
        [128 + 100 * torch.sin(rows / a) * torch.cos(columns / b) for a, b in ((20, 15), (30, 12), (25, 20))]
    )
    small = torch.nn.functional.pad(torch.nn.functional.avg_pool2d(image, 2), (0, 16))
    sizes, views = np.tile((96.0, 64.0), (16, 1)), [View(24, blur=0.0, jitter=0.0, gray=0.0)]
    numbers = sample_numbers(1, 16, torch.Generator().manual_seed(0))
    made = [
        make_views(
            stored(pixels.permute(1, 2, 0).expand(16, -1, -1, -1), sizes / by, sizes, views, numbers), views, numbers
        )[0]
        for pixels, by in ((image, 1), (small, 2))
    ]
    inner = [one[..., 1:-1, 1:-1] for one in made]  # bicubic weights at the border of a crop differ more
    torch.testing.assert_close(*inner, atol=0.1, rtol=0)
    torch.testing.assert_close(*made, atol=0.3, rtol=0)


def test_blur_kernel_scales_with_the_image():
    assert blur_taps(224) == 23
    assert all(blur_taps(size) % 2 == 1 and blur_taps(size) >= 3 for size in range(8, 500))
    assert math.isclose(blur_taps(96) / 96, 23 / 224, abs_tol=0.02)


def test_multi_crop_is_two_large_views_and_small_ones_in_turn():
    views = Recipe(local_crops=6, crop_scale=(0.14, 1.0)).views_at(0)
    assert [view.size for view in views] == [224, 224] + [96] * 6
    assert [view.scale for view in views] == [(0.14, 1.0)] * 2 + [(0.05, 0.14)] * 6
    assert [view.solarize for view in views] == [0.0, 0.2] * 4
    assert Recipe(augmentation="crop_only").views_at(0)[0].scale == (0.08, 1.0), "the augmentation's default"


def test_views_made_together_or_in_parts_equal_those_made_alone():
    """Equal small views are made together; `at_once` splits the batch."""
    images = torch.randint(0, 256, (7, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = Recipe(image_size=32, local_crops=5, local_size=16).views_at(0)
    numbers = sample_numbers(7, 7, torch.Generator().manual_seed(0))
    pixels = squashed(images, torch.ones(7), views, numbers)
    alone = [
        make_views(squashed(images, torch.ones(7), [view], own[None]), [view], own[None])[0]
        for view, own in zip(views, numbers, strict=True)
    ]
    assert [view.shape for view in alone] == [(7, 3, 32, 32)] * 2 + [(7, 3, 16, 16)] * 5
    for made in (make_views(pixels, views, numbers), make_views(pixels, views, numbers, at_once=3)):
        for view, want in zip(made, alone, strict=True):
            assert view.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(view, want, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_compiled_colors_equal_eager_ones():
    """Needs a C++ compiler and most of a minute on a CPU."""
    images = torch.randint(0, 256, (32, 64, 64, 3), dtype=torch.uint8)
    view = replace(AUGMENTATIONS["byol"][1], size=48, blur=0.5)
    compiled = torch.compile(colors_and_blur, dynamic=False, fullgraph=True)
    eager, fused = (
        make_view(images, torch.ones(32), view, torch.Generator().manual_seed(0), change)
        for change in (change_all, partial(change_all, change=compiled))
    )
    torch.testing.assert_close(fused, eager, atol=1e-4, rtol=0)
