"""Vectors that are the mean of several crops."""

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.encoder.crops import crop_views
from nnclr_hub.errors import ImageError, InvalidRequest


@pytest.fixture(scope="module")
def encoder():
    from nnclr_hub import load_encoder

    return load_encoder("random:test_resnet@0")


def test_the_vector_is_the_mean_of_the_vectors_of_the_views(encoder, image_files):
    views = [np.asarray(one) for one in crop_views(Image.open(image_files[0]).convert("RGB"), 7)]
    mean = encoder.embed(views).mean(axis=0)
    assert encoder.embed(image_files[:1], crops=7)[0] == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
    assert encoder.embed(image_files[:2], crops=1) == pytest.approx(encoder.embed(image_files[:2]), abs=1e-6)


def test_more_views_begin_with_the_same_ones():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70, 3), np.uint8))
    few, many = (list(crop_views(image, crops)) for crops in (4, 30))
    assert all(one.tobytes() == other.tobytes() for one, other in zip(few, many, strict=False))
    sizes = np.array([one.size for one in many[2:]])
    assert (sizes[:, 0] == sizes[:, 1]).all()
    assert sizes.min() >= 0.5 * 40
    assert len({one.tobytes() for one in many}) == 30


def test_broken_images_keep_their_place_and_tiny_ones_work(encoder, image_files):
    tiny = Image.new("RGB", (1, 3), "red")
    found = encoder.embed_each([image_files[0], b"nothing", tiny], crops=5)
    assert isinstance(found[1], ImageError)
    assert np.linalg.norm(found[2]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("images", "crops"), [([], 0), ([], -1), ([], 129), (np.zeros((1, 3, 64, 64), np.uint8), 2)], ids=str
)
def test_other_numbers_and_tensors_are_refused(encoder, images, crops):
    with pytest.raises(InvalidRequest):
        encoder.embed(images, crops=crops)
