"""Verbs without a network, a token, a writable home, and with a full disk: one sentence, never a traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import output_of

ROOT = Path(__file__).parents[2]
STARTER = "nnclr_resnet18_free_starter"
# runs each command in one process whose files may have at most some bytes; prints exit codes, errors and sentences
CHILD = """
import json, resource, sys
size = int(sys.argv[1])
sys.dont_write_bytecode = size > 0  # Python would leave half a file
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
from typer.testing import CliRunner
from nnclr_hub.cli import service
from nnclr_hub.cli.app import app
service._serve = lambda *given, **named: None
results = []
for command in json.loads(sys.argv[2]):
    result = CliRunner().invoke(app, command)
    error = None if result.exception is None or isinstance(result.exception, SystemExit) else repr(result.exception)
    results.append([result.exit_code, error, result.stderr])
print(json.dumps(results))
"""
NOWHERE = "http://127.0.0.1:9"
WORKS, FAILS = 0, 1
QUICK = {"NNCLR_BACKEND": "onnx"}  # the starter has its graph, so most commands need no torch


def check(commands: list[tuple[int, list[str]]], *, size: int = -1, **environment: str) -> list[str]:
    """Assert the exit code of each command, and that a failure is one line; return what was printed on stderr."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "NNCLR_CACHE")}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(size), json.dumps([command for _, command in commands])],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=inherited | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": NOWHERE, "COLUMNS": "500"} | QUICK | environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    for (expected, command), (code, error, stderr) in zip(commands, results, strict=True):
        assert (code, error) == (expected, None), (command, code, error, stderr)
        sentences = [line for line in stderr.splitlines() if line.startswith("Error: ")]
        assert len(sentences) == (expected == FAILS), (command, stderr)
    return [stderr for _, _, stderr in results]


@pytest.fixture(scope="module")
def indexed(image_files, tmp_path_factory) -> list[str]:
    """Options of a collection."""
    place = ["--collection", "photos", "--store", str(tmp_path_factory.mktemp("hard") / "store")]
    output_of("index", image_files[0].parent, *place, "--model", STARTER)
    return place


def test_without_a_network_a_token_and_a_home(indexed, image_files, tmp_path):
    photos, query = image_files[0].parent, str(image_files[0])
    said = check(
        [
            (FAILS, ["demo", "--no-gradio", "--port", "0"]),
            (FAILS, ["demo", "--no-gradio", "--port", "0", "--images", str(photos)]),
            (WORKS, ["models"]),
            (WORKS, ["inspect", str(photos), "--out", str(tmp_path / "report"), "--model", STARTER]),
            (WORKS, ["info", STARTER]),
            (WORKS, ["search", query, *indexed]),
            (WORKS, ["embed", query, "--out", str(tmp_path / "v.csv"), "--model", STARTER]),
            (WORKS, ["store", "export", "photos", str(tmp_path / "export"), *indexed[2:]]),
            (FAILS, ["download", "hf-hub:nobody/nothing"]),
            (FAILS, ["embed", "s3://bucket/photos", "--out", str(tmp_path / "s3")]),
            (FAILS, ["index", str(photos), "--collection", "c", "--server", NOWHERE]),
            (FAILS, ["publish", f"weights/{STARTER}", "nobody/nothing"]),
        ],
        HOME="/dev/null/home",
    )
    assert all("NNCLR_CACHE" in one for one in said[:2])


def test_on_a_full_disk(indexed, image_files, tmp_path):
    """A limit of the size of files is reported by the system like a full disk."""
    photos = image_files[0].parent
    out = [str(tmp_path / name) for name in ("v.npy", "v.parquet", "v", "export", "sheet.html", "new")]
    check(
        [
            (FAILS, ["embed", str(photos), "--model", STARTER, "--out", out[0]]),
            (FAILS, ["embed", str(photos), "--model", STARTER, "--out", out[1]]),
            (FAILS, ["embed", str(photos), "--model", STARTER, "--out", out[2]]),
            (FAILS, ["store", "export", "photos", out[3], *indexed[2:]]),
            (FAILS, ["index", str(photos), "--collection", "new", "--store", out[5], "--model", STARTER]),
            (FAILS, ["download", STARTER, "--to", str(tmp_path / "copy")]),
            (FAILS, ["inspect", str(photos), "--out", str(tmp_path / "report"), "--model", STARTER]),
            (FAILS, ["space", str(tmp_path / "space"), *indexed]),
            (WORKS, ["search", str(image_files[0]), *indexed]),
        ],
        size=3000,
        NNCLR_CACHE=str(tmp_path / "cache"),
    )
    assert not [path.name for path in tmp_path.iterdir() if path.suffix in (".npy", ".parquet", ".html")]
    assert not (tmp_path / "export").exists()
