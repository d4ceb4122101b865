"""Check the commands of all pages against the command line, and run the Python examples of the first pages."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from nnclr_hub.cli.app import app

ROOT = Path(__file__).parents[2]
COMMAND = typer.main.get_command(app)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands_of(text: str) -> list[str]:
    blocks = re.findall(r"^```(?:bash|console|sh)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    parts = (part.strip() for line in lines for part in re.split(r"&&|\|(?!\|)|[;)(]", line))
    return [part for part in parts if part.startswith("nnclr ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_and_option_exists(page):
    for line in commands_of(page.read_text()):
        words = shlex.split(line, comments=True)[1:]
        command = COMMAND
        while hasattr(command, "commands") and words and not words[0].startswith("-"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        options = {word.partition("=")[0] for word in words if re.match(r"-[-a-z]", word)}
        assert options <= known | {"--help"}, line


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_the_first_python_example_runs_and_runs_again(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("a.jpg", "b.jpg"):
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(file)
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)[0]
    names: dict[str, object] = {}
    for _ in range(2):
        exec(compile(code, name, "exec"), names)
    assert names["vectors"].shape == (2, 512)
