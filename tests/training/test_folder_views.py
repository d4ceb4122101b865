"""Views of some folders keep their colors, or have larger crops; those of the others are as before."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tiny_runs import recipe

from nnclr_hub.errors import InvalidRequest
from training.data.augment import StoredImages, make_views, sample_numbers
from training.data.crop_boxes import CROP_NUMBERS, crop_boxes
from training.data.folder_views import FolderViews
from training.data.views import AUGMENTATIONS, IMAGENET_MEAN, IMAGENET_STD, View
from training.distributed import ALONE
from training.prepare import prepare

SIZES = np.array([5, 11])  # images of the folders a and b


def changed(numbers, views, **chosen):
    """Return the numbers of 16 images, of which the first five are in the folder a."""
    given = {"keep_color": (), "least_crop": (), **chosen}
    copy = numbers.clone()
    FolderViews(["data/a", "b"], **given).of_images(SIZES).change(copy, np.arange(16), views)
    return copy


@pytest.mark.parametrize("augmentation", ["byol", "simclr"])
def test_chosen_images_keep_their_colors(augmentation):
    """They have the views of an augmentation without changes of color."""
    images = torch.randint(0, 256, (16, 24, 24, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    stored = StoredImages.whole(images, torch.ones(16))
    views = [replace(view, size=16) for view in AUGMENTATIONS[augmentation]]
    colored = [replace(view, saturation=0, hue=0, gray=0, solarize=0) for view in views]
    numbers = sample_numbers(2, 16, torch.Generator().manual_seed(0))
    some = make_views(stored, views, changed(numbers, views, keep_color=["a"]))
    for one, kept, other in zip(
        some, make_views(stored, colored, numbers), make_views(stored, views, numbers), strict=True
    ):
        torch.testing.assert_close(one[:5], kept[:5])
        torch.testing.assert_close(one[5:], other[5:])
        assert not torch.allclose(one[:5], other[:5])


def test_a_share_of_the_batches_keeps_the_colors_of_a_folder():
    views = [replace(view, size=16) for view in AUGMENTATIONS["byol"]]
    kept = 0
    for seed in range(200):
        numbers = sample_numbers(2, 16, torch.Generator().manual_seed(seed))
        different = (changed(numbers, views, keep_color=["a:0.3"]) != numbers).flatten(2).any(dim=2)[0]
        assert not different[5:].any(), "the other folder"
        assert different[:5].all() or not different[:5].any(), "the same for all images of a batch"
        kept += int(different[0])
    assert 35 < kept < 85


def test_chosen_images_have_larger_crops():
    """Large crops have the distribution of a larger least area; small ones and those of other folders stay."""
    views = [View(size=32, scale=(0.08, 1.0))] * 2 + [View(size=16, scale=(0.05, 0.2))]
    numbers = sample_numbers(3, 16, torch.Generator().manual_seed(0))
    larger = changed(numbers, views, least_crop=["a:0.6"])
    sizes, ratio = np.full((16, 2), 200.0), np.array((3 / 4, 4 / 3))

    def boxes(number, scale, given):
        return crop_boxes(sizes, np.array(scale), ratio, given[number].numpy()[:, :CROP_NUMBERS])

    for number in (0, 1):
        found, expected = boxes(number, (0.08, 1.0), larger), boxes(number, (0.6, 1.0), numbers)
        np.testing.assert_allclose(found[:5], expected[:5], atol=1)  # float32
        assert (found[:5, 2:].prod(axis=1) > 0.55 * 200**2).all()
        np.testing.assert_array_equal(found[5:], boxes(number, (0.08, 1.0), numbers)[5:])
    torch.testing.assert_close(larger[2], numbers[2])


def test_names_and_shares_are_checked():
    for chosen in (
        {"keep_color": ["c"]},
        {"keep_color": ["a:0"]},
        {"least_crop": ["c:0.5"]},
        {"least_crop": ["a:0"]},
        {"least_crop": ["a:1.5"]},
        {"least_crop": ["a"]},
        {"least_crop": ["a:much"]},
    ):
        with pytest.raises(InvalidRequest):
            FolderViews(["data/a", "b"], **{"keep_color": (), "least_crop": (), **chosen})


def test_a_run_has_them(tmp_path):
    """Red images: no view of the chosen folder is gray, and those of the other folder often are."""
    folders = [tmp_path / name for name in ("kept", "changed")]
    for folder in folders:
        folder.mkdir()
        for number in range(24):
            Image.new("RGB", (48, 48), (200, 30, 30)).save(folder / f"{number}.png")
    quiet = Console(quiet=True)
    with pytest.raises(InvalidRequest):
        prepare(recipe("keep_color_of=kept,other"), folders, None, None, ALONE, quiet)
    batches = prepare(recipe("keep_color_of=kept", "epochs=1"), folders, None, None, ALONE, quiet).batches
    gray = {True: 0, False: 0}
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        for views in make_views(batch.pixels, batch.views, batch.numbers):
            pixels = views * torch.tensor(IMAGENET_STD)[:, None, None] + torch.tensor(IMAGENET_MEAN)[:, None, None]
            spread = (pixels.amax(1) - pixels.amin(1)).amax((1, 2))
            for image, value in zip(batch.ids.tolist(), spread.tolist(), strict=True):
                gray[image < 24] += value < 1e-3
    assert gray[True] == 0 < gray[False]
