"""The random parameters of the augmentation: per image, in range, repeatable."""

import math
from dataclasses import replace

import pytest
import torch
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.functional import rgb_to_grayscale, solarize

from training.data.augment import (
    AUGMENTATIONS,
    View,
    _in_lines,
    blur_taps,
    draw_boxes,
    make_view,
    make_views,
)
from training.data.operations import compiled
from training.recipes import Recipe


def test_crops_are_distributed_like_torchvisions():
    """Area, ratio and center of 4000 crops of a wide image have the means of torchvision's."""
    torch.manual_seed(0)
    wide, high = 300, 200
    image = torch.empty(3, high, wide)
    boxes = [RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(4000)]
    theirs = torch.tensor(boxes, dtype=torch.float32)
    ours = draw_boxes(torch.full((4000,), wide / high), View(), torch.Generator().manual_seed(0))
    ours = ours * torch.tensor([high, wide, high, wide])
    for sampled in (ours, theirs):
        sampled[:, :2] += sampled[:, 2:] / 2  # to centers
    for column, side in enumerate((high, wide, high, wide)):
        assert abs(ours[:, column].mean() - theirs[:, column].mean()) < 0.02 * side
        assert abs(ours[:, column].std() - theirs[:, column].std()) < 0.02 * side


def test_crops_stay_inside_images_of_any_aspect():
    for aspect in (0.02, 0.5, 1.0, 3.0, 60.0):
        top, left, height, width = draw_boxes(torch.full((500,), aspect), View(), torch.Generator().manual_seed(1)).T
        assert top.min() >= 0
        assert left.min() >= 0
        assert (top + height).max() <= 1 + 1e-6
        assert (left + width).max() <= 1 + 1e-6
        assert height.min() > 0
        assert width.min() > 0


def test_images_of_extreme_proportions_give_finite_views():
    """An image of 1 x 3000 pixels, squashed to a square, has crops a fraction of a pixel high."""
    images = torch.randint(0, 256, (64, 96, 96, 3), dtype=torch.uint8)
    for aspect in (1 / 3000, 1 / 50, 50.0, 3000.0):
        made = make_view(images, torch.full((64,), aspect), View(size=48), torch.Generator().manual_seed(0))
        assert made.isfinite().all()


@pytest.mark.parametrize("kind", [torch.uint8, torch.float32, torch.float16])
def test_images_of_every_type_are_copied_once_for_all_views(kind):
    images = torch.randint(0, 256, (2, 8, 8, 3)).to(kind)
    lines = _in_lines(images)
    assert torch.equal(lines, images.float())
    assert lines.transpose(2, 3).is_contiguous(), "otherwise the products copy them for every view"
    assert _in_lines(lines).data_ptr() == lines.data_ptr(), "make_view does not copy them again"


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


def test_views_depend_only_on_the_generator():
    images = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    one, two = (make_view(images, torch.ones(4), View(size=24), torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one, two)


def test_the_augmentations_have_the_papers_parameters_and_crop_only_only_crops():
    first, second = AUGMENTATIONS["byol"]
    assert (first.blur, first.solarize, second.blur, second.solarize) == (1.0, 0.0, 0.1, 0.2)
    assert all((view.brightness, view.hue, view.blur) == (0.8, 0.2, 0.5) for view in AUGMENTATIONS["simclr"])
    assert all(view.blur == 0 for view in AUGMENTATIONS["cifar"])
    gray = torch.full((8, 32, 32, 3), 77, dtype=torch.uint8)
    made = make_view(
        gray, torch.ones(8), replace(AUGMENTATIONS["crop_only"][0], size=24), torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(made, made[:1, :, :1, :1].expand_as(made), atol=1e-4, rtol=0)


def test_blur_kernel_scales_with_the_image():
    assert blur_taps(224) == 23
    assert all(blur_taps(size) % 2 == 1 and blur_taps(size) >= 3 for size in range(8, 500))
    assert math.isclose(blur_taps(96) / 96, 23 / 224, abs_tol=0.02)


def test_multi_crop_is_two_large_views_and_small_ones_in_turn():
    views = Recipe(local_crops=6, crop_scale=(0.14, 1.0)).views_at(0)
    assert [view.size for view in views] == [224, 224] + [96] * 6
    assert [view.scale for view in views] == [(0.14, 1.0)] * 2 + [(0.05, 0.14)] * 6
    assert [view.solarize for view in views] == [0.0, 0.2] * 4
    images = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)
    small = Recipe(image_size=32, local_crops=3, local_size=16)
    made = make_views(images, torch.ones(3), small.views_at(0), torch.Generator().manual_seed(0))
    assert [view.shape[-1] for view in made] == [32, 32, 16, 16, 16]
    assert Recipe(augmentation="crop_only").views_at(0)[0].scale == (0.08, 1.0), "the augmentation's default"


@pytest.mark.slow
def test_compiled_operations_equal_eager_ones():
    """Needs a C++ compiler and most of a minute on a CPU."""
    images = torch.randint(0, 256, (32, 64, 64, 3), dtype=torch.uint8)
    view = replace(AUGMENTATIONS["byol"][1], size=48, blur=0.5)
    eager, fused = (
        make_view(images, torch.ones(32), view, torch.Generator().manual_seed(0), *operations)
        for operations in ((), (compiled(),))
    )
    torch.testing.assert_close(fused, eager, atol=1e-4, rtol=0)
