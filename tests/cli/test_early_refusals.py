"""What can be seen to be wrong with a call is told before torch is imported, and leaves nothing behind."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
import json, sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "timm"):
            raise SystemError(f"{name} was imported")

sys.meta_path.insert(0, Refusing())
from typer.testing import CliRunner
from nnclr_hub.cli.app import app

for call in json.load(sys.stdin):
    done = CliRunner().invoke(app, call)
    print(json.dumps([done.exit_code, done.stdout, done.stderr, repr(done.exception)]))
"""


@pytest.fixture(scope="module")
def taken():
    """A port that somebody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_cheap_faults_are_told_before_torch_is_imported(photos, pictures, model, taken, tmp_path, monkeypatch):
    """In one process that cannot import torch; each says one line, but for Typer's own refusal, and nothing else."""
    monkeypatch.chdir(tmp_path)
    with open_store("store") as store:
        store.create("c", CollectionSpec(2))
    Path("empty").mkdir()
    Path("notes.txt").write_text("mine")
    photo, before = str(pictures[0]), sorted(tmp_path.iterdir())
    search = ["search", photo, "--collection", "c", "--store", "store"]
    index = ["index", str(photos), "--collection", "new", "--store", "new"]
    demo = ["demo", "--store", "new", "--port", "0", "--images"]
    wrong = {
        "nowhere.jpg does not exist": ["embed", "nowhere.jpg"],
        "empty holds no image": ["embed", "empty"],
        "Part 3 of 2 is not possible": ["embed", photo, "--part", "3/2", "--out", "v"],
        "precision='int8' is none of f32, f16": ["embed", photo, "--precision", "int8", "--out", "v"],
        "shard_size=0 is not possible": ["embed", photo, "--shard-size", "0", "--out", "v"],
        "notes is no folder": ["embed", photo, "--out", "notes/v.npy"],
        "No model is called 'nnclr_resnt'": ["embed", photo, "--model", "nnclr_resnt"],
        "Backend 'fast' is none of": ["embed", photo, "--backend", "fast"],
        "nowhere does not exist: give a folder": ["index", "nowhere", *index[2:]],
        "Collection name 'a b'": ["index", str(photos), "--collection", "a b", "--store", "new"],
        "did you mean 'nnclr_resnet50'": [*index, "--model", "nnclr_resnet5"],
        "a red car is no file: name an image, for queries are images": ["search", "a red car", *search[2:]],
        "not a store": [*search[:4], "--store", "nowhere"],
        "`where` is an object": [*search, "--where", "[1]"],
        "100000": [*search, "-k", "100000"],
        "effort": [*search, "--effort", "0"],
        "--point 5 is not X,Y": ["attention", photo, "--point", "5"],
        "has no area": ["attention", photo, "--box", "9,9,3,12"],
        "The point (64, 1) is not inside": ["attention", photo, "--point", "64,1"],
        "Similarity 'l1' is none of": ["attention", photo, "--similarity", "l1"],
        "No model is called 'nope'": ["info", "nope"],
        "nowhere is not a store": ["serve", "--port", "0", "--store", "nowhere", "--read-only"],
        "nowhere does not exist": [*demo, "nowhere"],
        "empty holds no image (looked": [*demo, "empty"],
        "did you mean 'nnclr_vit_base'": [*demo, str(photos), "--model", "nnclr_vit_bas"],
        "metric must be one of": ["store", "create", "d", "--store", "new", "--dim", "4", "--metric", "x"],
        "did you mean 'nnclr_vit_small'": ["store", "create", "d", "--store", "new", "--model", "nnclr_vit_smal"],
        "No model is called 'other'": ["store", "reembed", "c", "--store", "store", "--model", "other"],
        "notes.txt is a file, not a folder": ["probe", "fit", "notes.txt", "--out", "probe"],
    }
    failing = {
        "There is no collection 'd': there are c": [*search[:2], "--collection", "d", "--store", "store"],
        "Image notes.txt: This is not an image": ["attention", photo, "--target", "notes.txt"],
        "Image nowhere.jpg: The file cannot be opened": ["attention-grid", "nowhere.jpg"],
        f"Port {taken} on 127.0.0.1 cannot be used": ["serve", "--port", str(taken), "--store", "new"],
        "There is no collection 'e'": ["store", "reembed", "e", "--store", "store", "--model", str(model)],
    }
    calls = [*wrong.values(), *failing.values(), ["demo", "--port", "99999"]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    *told, usage = [json.loads(line) for line in done.stdout.splitlines()]
    for sentence, (code, out, err, exception) in zip([*wrong, *failing], told, strict=True):
        assert sentence in err, exception
        assert (err.startswith("Error: "), err.count("\n"), out) == (True, 1, ""), err
        assert code == (2 if sentence in wrong else 1), err
    assert (usage[0], "Invalid value for '--port'" in usage[2]) == (2, True)
    assert sorted(tmp_path.iterdir()) == before, "nothing was left behind"
