"""docs/attention.md: its Python and its commands run, in a folder with the images that they name."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from nnclr_hub import AttentionMap
from nnclr_hub.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "attention.md").read_text()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, model):
    from skimage import data

    cat = Image.fromarray(data.cat())
    for name in ("dog", "park", "beach", "cat"):
        cat.crop((0, 0, 240, 230)).save(tmp_path / f"{name}.jpg")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "encoder").symlink_to(model)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_python_runs(folder):
    names = {}
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(text, "docs/attention.md", "exec"), names)
    assert isinstance(names["found"], AttentionMap)
    assert (folder / "map.png").is_file()


@pytest.mark.slow
def test_its_commands_run(folder):
    block = next(text for text in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL))
    lines = [shlex.split(line, comments=True) for line in block.splitlines() if not line.startswith("#")]
    assert len(lines) == 4
    for program, *arguments in lines:
        done = CliRunner().invoke(app, arguments)
        assert (program, done.exit_code) == ("nnclr", 0), done.output
    made = {str(path.relative_to(folder)) for path in folder.rglob("*.png")}
    assert {"attention/dog-attention.png", "found/1-park-attention.png", "found/figure.png", "grid.png"} <= made
