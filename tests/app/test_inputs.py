"""What a file that was uploaded is called: as at the person's side, unless that can be no file's name."""

from pathlib import Path

import pytest
from gradio.data_classes import FileData, ListFiles

from app.widgets.uploader import chosen_files
from app.widgets.raw_files import RawFiles
from app.widgets.uploaded import Uploaded
from nnclr_hub.errors import InvalidRequest


@pytest.mark.parametrize(
    ("original", "called"),
    [
        ('a "b" $c.jpg', 'a "b" $c.jpg'),
        (None, "a b c.jpg"),
        ("", "a b c.jpg"),
        ("../a.jpg", "a b c.jpg"),
        ("a\nb.jpg", "a b c.jpg"),
        ("a" * 300, "a b c.jpg"),
        ("10.00.00\u202fAM.png", "10.00.00\u202fAM.png"),
    ],
)
def test_the_name_is_the_persons_own(original, called):
    there = FileData(path="/tmp/1/a b c.jpg", orig_name=original)
    assert Uploaded.of(there) == Uploaded(Path("/tmp/1/a b c.jpg"), called)


def test_a_file_input_gives_them_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    files = RawFiles(file_count="multiple")
    given = ListFiles(root=[FileData(path="/tmp/1/a.jpg", orig_name="$a.jpg")])
    assert files.preprocess(given) == [Uploaded(Path("/tmp/1/a.jpg"), "$a.jpg")]
    assert files.preprocess(None) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("Screenshot 2026-01-01 at 10.00.00\u202fAM.png", True),
        ("\u5199\u771f\u3000\u590f/\U0001f468\u200d\U0001f469.jpg", True),
        ("Caf\u00e9\u00a0no 1.jpg", True),
        ("a\nb.jpg", False),
        ("a\0b.jpg", False),
        ("a\u2028b.jpg", False),
        ("a\ud800b.jpg", False),
        ("", False),
    ],
)
def test_an_intake_takes_the_names_that_people_have(tmp_path, monkeypatch, name, taken):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    (tmp_path / "0.part").touch()
    given = [{"name": name, "parts": [str(tmp_path / "0.part")]}]
    if taken:
        assert chosen_files(given) == [(name, [tmp_path / "0.part"])]
        return
    with pytest.raises(InvalidRequest, match="A file needs a name"):
        chosen_files(given)
