"""The images of a folder."""

import logging

import pytest
from PIL import Image

from nnclr_hub.images.listing import list_images


@pytest.fixture
def folder(tmp_path):
    for name in ("cat/a.png", "dog/b.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    return tmp_path / "photos"


def names(folder):
    return [path.relative_to(folder).as_posix() for path in list_images(folder)]


def test_links_to_folders_are_not_followed_and_reported_once(folder, tmp_path, caplog):
    """Neither in a cycle nor elsewhere; links to files are images like others."""
    (folder / "circle").symlink_to(folder)
    (folder / "cat" / "elsewhere").symlink_to(tmp_path)
    (folder / ".hidden").symlink_to(tmp_path)
    (folder / "linked.png").symlink_to(folder / "cat" / "a.png")
    with caplog.at_level(logging.WARNING):
        assert names(folder) == names(folder) == ["cat/a.png", "dog/b.png", "linked.png"]
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith(f"{folder} contains links to folders (2), such as {folder}/cat/elsewhere")


def test_files_that_are_no_images_are_counted_once(folder, caplog):
    """By suffix, in both cases; tables and hidden files are not counted."""
    for name in ("a.MOV", "cat/b.mov", "cat/c.cr9", "labels.csv", ".hidden.mov", "dog/README"):
        (folder / name).touch()
    with caplog.at_level(logging.WARNING):
        assert names(folder) == names(folder) == ["cat/a.png", "dog/b.png"]
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith(str(folder))
    assert warning.endswith("2 .mov, 1 .cr9, 1 without suffix")
