"""The gallery that is rendered when there is no network."""

import json
from functools import partial

import numpy as np
import pytest
from PIL import Image

from app import gallery
from app.rendered.gallery import KINDS, TRUTH, render, write_gallery


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    steps: list[tuple[int, int]] = []
    folder = write_gallery(
        tmp_path_factory.mktemp("gallery") / "rendered", lambda *step: steps.append(step), per_kind=3
    )
    return folder, steps


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB").resize((32, 32)), np.float64) / 255


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_a_kind_are_always_the_same_and_never_alike(kind):
    first, again, second = render(kind, 0), render(kind, 0), render(kind, 1)
    assert np.array_equal(np.asarray(first), np.asarray(again))
    assert max(first.size) <= 128
    assert np.abs(pixels(first) - pixels(second)).mean() > 0.02
    assert pixels(first).std() > 0.02, "the image shows something"


def test_all_images_are_written_with_progress(rendered):
    folder, steps = rendered
    images = sorted(folder.rglob("*.jpg"))
    assert steps[-1] == (len(images), len(images))
    assert {path.parent.name for path in images} == set(KINDS)
    assert write_gallery(folder) == folder, "an existing gallery is not written again"


def test_the_planted_truth_is_that_of_the_files(rendered):
    folder, _ = rendered
    truth = json.loads((folder / TRUTH).read_text())
    for path, kind in truth["wrong_labels"].items():
        number = int(path[-7:-4])
        assert path.split("/")[0] != kind
        assert np.abs(pixels(Image.open(folder / path)) - pixels(render(kind, number))).mean() < 0.05
    for one, copy in truth["duplicates"]:
        a, b = pixels(Image.open(folder / one)), pixels(Image.open(folder / copy))
        assert min(np.abs(a - b).mean(), np.abs(a - b[:, ::-1]).mean()) < 0.15
    for path in truth["outliers"]:
        assert (folder / path).is_file()


def test_without_a_network_the_gallery_is_rendered_next_to_photos(tmp_path, monkeypatch):
    """Also if a download fails."""

    def cut_off(*_, **__):
        (tmp_path / "imagenette2-160" / "val").mkdir(parents=True)
        raise RuntimeError("the connection broke")

    monkeypatch.setattr(gallery, "_reachable", lambda: True)
    monkeypatch.setattr("torchvision.datasets.Imagenette", cut_off)
    monkeypatch.setattr(gallery, "write_gallery", partial(write_gallery, per_kind=2))
    folder, _ = gallery.default_gallery(tmp_path)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        *KINDS,
        *(f"photo-{name}" for name in gallery.PHOTOS),
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name], "nothing partial is left"
