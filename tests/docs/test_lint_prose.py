"""Check the prose lint itself: bad samples give findings, good ones give none."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("lint_prose", ROOT / ".ci" / "lint_prose.py")
assert SPEC is not None
assert SPEC.loader is not None
LINT = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(LINT)

GOOD = '''
"""Queue of images."""


def add(image, queue):
    """Add an image to the queue."""
    if image in queue:
        raise ValueError(f"{image} is no longer available.")  # there is no second attempt
    table["beside"] = image


class Queue:
    """A queue of images."""

    @property
    def size(self):
        """Number of images."""
'''
BAD = {
    "x = 1  # as we are told": "told",
    'raise ValueError("The address is none of a server.")': "is none of",
    'raise ValueError(f"{x} is no address")': "is no address",
    'def f():\n    """What is added."""': "What",
    'def f():\n    """Adds an image."""': "Adds",
    "def f(pictures):\n    pass": "pictures",
    "picture_list = []": "picture",
    "x = 1  # the neighbour": "neighbour",
}


def findings(path, text):
    path.write_text(text)
    return list(LINT.check(path))


def test_good_python_has_no_findings(tmp_path):
    assert findings(tmp_path / "good.py", GOOD) == []


@pytest.mark.parametrize("text", BAD)
def test_bad_python_has_one_finding(tmp_path, text):
    (finding,) = findings(tmp_path / "bad.py", text)
    assert BAD[text] in finding


def test_markdown_is_checked_outside_code_and_links(tmp_path):
    code = "```\nbeside\n```\n`beside` [a link](beside.md)\n"
    assert findings(tmp_path / "good.md", code) == []
    assert len(findings(tmp_path / "bad.md", code + "It is beside the image.\n")) == 1


def test_paths_limit_what_is_checked():
    checked = LINT.tracked([".ci/lint_prose.py", "Makefile", "README.md"])
    assert {path.name for path in checked} == {"Makefile", "README.md"}
