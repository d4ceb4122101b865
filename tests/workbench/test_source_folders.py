"""Folders that a server may read: what they are called, and which are not there."""

from pathlib import Path

import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench.source_folders import SourceFolders


def test_every_message_names_its_folder(tmp_path):
    """Also one without a name, and the second of two with the same."""
    for parent in ("a", "b"):
        (tmp_path / parent / "photos").mkdir(parents=True)
    folders = SourceFolders([Path("/"), tmp_path / "a" / "photos", tmp_path / "b" / "photos"])
    assert folders.names == ["/", "photos", "photos (2)"]
    for name in folders.names:
        with pytest.raises(InvalidRequest) as refused:
            folders.find(name, "nothing")
        assert repr(name) in str(refused.value)
    with pytest.raises(InvalidRequest):
        SourceFolders([tmp_path]).again("/", ".")


def test_missing_folders_are_found(tmp_path):
    (tmp_path / "file").touch()
    folders = SourceFolders([tmp_path, tmp_path / "nowhere", tmp_path / "file"])
    assert folders.missing == [tmp_path / "nowhere", tmp_path / "file"]
    with pytest.raises(InvalidRequest):
        folders.find("nowhere")
