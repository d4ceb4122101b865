"""What a file that was uploaded is called: as at the person's side, unless that can be no file's name."""

from pathlib import Path

import pytest
from gradio.data_classes import FileData, ListFiles

from app.widgets.raw_files import RawFiles
from app.widgets.uploaded import Uploaded


@pytest.mark.parametrize(
    ("original", "called"),
    [
        ('a "b" $c.jpg', 'a "b" $c.jpg'),
        (None, "a b c.jpg"),
        ("", "a b c.jpg"),
        ("../a.jpg", "a b c.jpg"),
        ("a\nb.jpg", "a b c.jpg"),
        ("a" * 300, "a b c.jpg"),
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
