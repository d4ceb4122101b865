"""What has become of a folder's images since it was indexed."""

import logging

import pytest
from PIL import Image

from nnclr_hub.workbench.folder_changes import find_changes, list_images_of


@pytest.fixture
def folder(tmp_path):
    for name in ("cat/a.png", "dog/b.png"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    return tmp_path / "photos"


@pytest.mark.parametrize("hide", ["a link", "a mount point", "a place below a mount point", "nothing"])
def test_only_certainly_deleted_files_are_pruned(folder, tmp_path, caplog, hide):
    """Files behind a link or on an unmounted disk are kept, and the log reports them."""
    deep = folder / "disk" / "dog"
    deep.parent.mkdir()
    (folder / "dog").rename(deep)
    found = list_images_of(folder).images.items()
    known = {id: {"root": "r", "path": image.path} for id, image in found}
    deep.rename(tmp_path / "dog")
    place = deep
    if hide == "a link":
        deep.symlink_to(tmp_path / "nowhere")
    elif hide == "a mount point":
        deep.mkdir()
    elif hide == "a place below a mount point":
        place = deep.parent
    else:
        deep.parent.rmdir()
    (folder / "cat" / "a.png").unlink()
    (folder / "cat" / "b.png").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        changes = find_changes(list_images_of(folder, origin=lambda source: "r"), known, prune=True)
    gone = ["cat/a.png"] if hide != "nothing" else ["cat/a.png", "disk/dog/b.png"]
    assert [known[id]["path"] for id in changes.gone] == gone
    messages = [record.getMessage().split(" so ")[0] for record in caplog.records]
    cause = {"a link": "is a link to a folder, and such links are not followed", "nothing": ""}
    kept = f"{place} {cause.get(hide, 'is empty, which may mean that its disk is not mounted')},"
    assert messages == ([] if hide == "nothing" else [kept])
    assert changes.kept == len(messages)
