"""The gallery that is rendered when there is no network."""

from functools import partial

import numpy as np
import pytest
from PIL import Image

from app import gallery
from app.rendered import KINDS, render, write_gallery


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    steps: list[tuple[int, int]] = []
    folder = tmp_path_factory.mktemp("gallery") / "rendered"
    return write_gallery(folder, lambda *step: steps.append(step), per_kind=3), steps


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


def test_the_names_tell_what_is_planted(rendered):
    folder, _ = rendered
    wrong, copies, odd = [], [], []
    for path in folder.rglob("*.jpg"):
        kind, _, number = path.stem.rpartition("-")
        {"copy": copies, "odd": odd}.get(kind, [] if kind == path.parent.name else wrong).append(path)
        if kind in KINDS:
            assert np.abs(pixels(Image.open(path)) - pixels(render(kind, int(number)))).mean() < 0.05
    for path in copies:
        first, copy = pixels(render(path.parent.name, int(path.stem[-3:]))), pixels(Image.open(path))
        assert min(np.abs(first - copy).mean(), np.abs(first - copy[:, ::-1]).mean()) < 0.15
    assert (len(wrong), len(copies), len(odd)) == (20, 20, 10)


def test_without_a_network_the_gallery_is_rendered_next_to_photos(tmp_path, monkeypatch):
    """Also if a download fails."""

    def cut_off(*_, **__):
        (tmp_path / "imagenette2-160" / "val").mkdir(parents=True)
        raise RuntimeError("the connection broke")

    monkeypatch.setattr(gallery, "_reachable", lambda: True)
    monkeypatch.setattr("torchvision.datasets.Imagenette", cut_off)
    monkeypatch.setattr(gallery, "write_gallery", partial(write_gallery, per_kind=3))
    folder, _ = gallery.default_gallery(tmp_path)
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        *KINDS,
        *(f"photo-{name}" for name in gallery.PHOTOS),
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name], "nothing partial is left"
