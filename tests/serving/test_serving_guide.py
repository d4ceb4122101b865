"""docs/serve.md: its examples run, and docs/reference/settings.md is current."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import settings_table

DOCS = settings_table.PAGE.parents[1]
GUIDE = (DOCS / "serve.md").read_text()
OTHERS = ("operate.md", "cluster.md", "security.md", "reference/requests.md", "reference/settings.md")
PAGES = "".join((DOCS / name).read_text() for name in ("serve.md", *OTHERS))


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(model, tmp_path_factory.mktemp("guide") / "store")


@pytest.fixture
def here(photos, tmp_path, monkeypatch) -> Path:
    """Return a folder with the files of the examples."""
    shutil.copytree(photos / "cat", tmp_path / "images" / "cat")
    for i, name in enumerate(("cat.jpg", "dog.jpg")):
        shutil.copy(photos / "coffee" / f"{i:02}.jpg", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_settings_table_is_current():
    assert settings_table.written() == settings_table.PAGE.read_text(), "run: python tests/settings_table.py"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_the_curl_examples_run(server, here):
    lines = [line for block in examples("bash") for line in block.splitlines()]
    assert len(lines) == 7
    for line in lines:
        command = line.replace("curl ", "curl --silent --show-error --fail-with-body ", 1)
        done = subprocess.run(
            ["sh", "-c", command], env={**os.environ, "URL": server.url}, capture_output=True, text=True
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    assert (here / "vectors.npy").stat().st_size > 128
    assert (here / "map.png").read_bytes().startswith(b"\x89PNG")
    assert '"id":"cat-1"' in done.stdout.replace(" ", "")


def test_the_python_examples_run(server, here):
    httpx.delete(f"{server.url}/api/v1/collections/photos", timeout=60)  # of the curl examples
    own, openai = examples("python")
    for text in (own, openai):
        names: dict = {}
        exec(compile(text.replace("http://127.0.0.1:8000", server.url), "docs/serve.md", "exec"), names)
        if text is own:
            assert names["vectors"].shape == (2, 32)
            assert names["report"].added == 20
            assert len(names["matches"]) == 5
            assert [one.values.shape for one in names["found"]] == [(7, 7)]
        else:
            assert len(names["vector"]) == 32
            names["client"].close()


def test_named_options_and_variables_exist():
    from typer.testing import CliRunner

    from nnclr_hub.cli.app import app
    from serving.settings import Settings

    known = {f"NNCLR_{name.upper()}" for name in Settings.model_fields}
    known |= {"NNCLR_STORE", "NNCLR_MODEL", "NNCLR_API_KEY", "NNCLR_PUBLISH", "NNCLR_STATE"}
    known |= {"NNCLR_MEMORY", "NNCLR_TARGET"}  # of compose.yaml
    assert set(re.findall(r"NNCLR_[A-Z_]+", PAGES)) <= known
    helps = "".join(
        CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output for verb in ("serve", "index")
    )
    for line in re.findall(r"nnclr (?:serve|index) .*", PAGES):
        for flag in re.findall(r"--[a-z-]+", line):
            assert flag in helps, flag
