"""The names of uploaded files: those of the user, unless a file cannot have such a name."""

from pathlib import Path

import pytest
from gradio.data_classes import FileData, ListFiles

from app.widgets.inputs import RawFiles, Uploaded
from app.widgets.uploader import uploaded_files
from nnclr_hub.errors import InvalidRequest

SCREENSHOT = "Screenshot 2026-01-01 at 10.00.00\u202fAM.png"


@pytest.mark.parametrize(
    ("original", "valid"),
    [('a "b" $c.jpg', True), (SCREENSHOT, True), (None, False), ("", False), ("../a.jpg", False), ("a" * 300, False)],
)
def test_the_name_is_that_of_the_user(original, valid):
    upload = FileData(path="/tmp/1/a b c.jpg", orig_name=original)
    assert Uploaded.of(upload) == Uploaded(Path("/tmp/1/a b c.jpg"), original if valid else "a b c.jpg")


def test_a_file_input_returns_the_uploads_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    files = RawFiles(file_count="multiple")
    uploads = ListFiles(root=[FileData(path="/tmp/1/a.jpg", orig_name="$a.jpg")])
    assert files.preprocess(uploads) == [Uploaded(Path("/tmp/1/a.jpg"), "$a.jpg")]
    assert files.preprocess(None) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        (SCREENSHOT, True),
        ("\u5199\u771f\u3000\u590f/\U0001f468\u200d\U0001f469.jpg", True),
        ("Caf\u00e9\u00a0no 1.jpg", True),
        ("a\nb.jpg", False),
        ("a\0b.jpg", False),
        ("a\u2028b.jpg", False),
        ("a\ud800b.jpg", False),
        ("", False),
        ("../a.jpg", False),
        ("/a.jpg", False),
    ],
)
def test_the_uploader_accepts_ordinary_names(tmp_path, monkeypatch, name, valid):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "0.part").touch()
    files = [{"name": name, "parts": [str(tmp_path / "0.part")]}]
    if valid:
        assert uploaded_files(files) == [(name, [tmp_path / "0.part"])]
        return
    with pytest.raises(InvalidRequest):
        uploaded_files(files)
