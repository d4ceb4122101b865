"""Invalid calls are refused before torch is imported, and create no files."""

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from commands import in_another_process

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

WORDS_ON_A_STORE = (
    *("list", "verify", "repair x", "drop x --yes", "reembed x --model m"),
    *("import empty", "import empty --collection x", "import none --collection x"),
)
DEEP = "[" * 50_000 + "]" * 50_000
WITHOUT_TORCH = """
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "timm"):
            raise SystemError(f"{name} was imported")

sys.meta_path.insert(0, Refusing())
"""


@pytest.fixture(scope="module")
def taken():
    """Yield a port that is in use."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_invalid_calls_are_refused_without_importing_torch(photos, image_files, model, taken, tmp_path, monkeypatch):
    """All calls run in one process that cannot import torch. Each prints one line, except for Typer's errors."""
    monkeypatch.chdir(tmp_path)
    with open_store("store") as store:
        store.create("c", CollectionSpec(2)).upsert([Item("a", np.ones(2, np.float32))])
    np.save("long.npy", np.ones(3, np.float32))
    np.save("fits.npy", np.ones(2, np.float32))
    Path("empty").mkdir()
    Path("notes.txt").write_text("mine")
    shutil.copytree(model, "run/encoder")
    photo, before = str(image_files[0]), sorted(tmp_path.iterdir())
    search = ["search", photo, "--collection", "c", "--store", "store"]
    by_id = ["search", "--id", "a", *search[2:]]
    index = ["index", str(photos), "--collection", "new", "--store", "new"]
    demo = ["demo", "--store", "new", "--port", "0", "--images"]
    wrong = [
        ["embed", "nowhere.jpg"],
        ["embed", "nowhere-{0..3}.tar"],
        ["index", "nothing://bucket/photos", *index[2:]],
        ["index", "photos.tar", *index[2:]],
        ["embed", "empty"],
        ["embed", photo, "--part", "3/2", "--out", "v"],
        ["embed", photo, "--precision", "int8", "--out", "v"],
        ["embed", photo, "--shard-size", "0", "--out", "v"],
        ["embed", photo, "--out", "notes/v.npy"],
        ["embed", photo, "--out", "v.h5"],
        ["embed", photo, "--out", "v.xyz"],
        ["embed", photo, "--out", "v.safetensors"],
        ["embed", photo, "--part", "1/2"],
        ["embed", photo, "--part", "second", "--out", "v"],
        ["embed", photo, "--part", "0/2", "--out", "v"],
        ["embed", photo, "--part", "1/2", "--out", "v.npy"],
        ["embed", photo, "--part", "1/2", "--ray", "local", "--out", "v"],
        ["embed", photo, "--ray", "local"],
        ["embed", photo, "--workers", "2", "--out", "v"],
        ["embed", photo, "--precision", "f16"],
        ["embed", photo, "--model", "nnclr_resnt"],
        ["embed", photo, "--backend", "fast"],
        ["index", "nowhere", *index[2:]],
        ["index", str(photos), "--collection", "a/b", "--store", "new"],
        [*index, "--model", "nnclr_resnet5"],
        ["search", "a red car", *search[2:]],
        [*search[:4], "--store", "nowhere"],
        ["search", *search[2:]],
        [*by_id, "--positive", "b"],
        [*by_id, "--box", "1,2,3,4"],
        [*by_id, "--where", '{"most": []}'],
        [*by_id, "--server", "http://127.0.0.1:9"],
        [*by_id[:5], "--model", "m", "--server", "http://127.0.0.1:9"],
        ["search", "--id", "not possible!", *search[2:]],
        ["search", "--vector-from", "nowhere.npy", *search[2:]],
        ["search", photo, *search[2:], "--out", "matches.txt"],
        [*search, "--where", "{"],
        [*search, "--where", "[1]"],
        [*search, "--where", DEEP],
        ["store", "delete", "c", "--where", DEEP, "--store", "store"],
        ["store", "delete", "c", "--where", "{}", "--store", "store"],
        ["store", "set", "c", DEEP, "--id", "a", "--store", "store"],
        [*search, "-k", "100000"],
        [*search, "--effort", "0"],
        [*search, "--box", "0,0,9999,9"],
        [*search, "--box", "9,9,3,12"],
        ["search", "--vector-from", "long.npy", *search[2:]],
        ["attention", photo, "--point", "5"],
        ["attention", photo, "--box", "9,9,3,12"],
        ["attention", photo, "--point", "64,1"],
        ["attention", photo, "--similarity", "l1"],
        ["attention", photo, "--point", "1,1", "--box", "1,2,3,4"],
        ["attention", photo, "--box", "1,2,3,x"],
        ["attention", photo, "--out", "map.jpg"],
        ["attention", photo, "--threshold", "2"],
        ["attention", photo, "--opacity", "3"],
        ["info", "nope"],
        ["serve", "--port", "0", "--store", "nowhere", "--read-only"],
        ["serve", "--port", "0", "--store", "new", "--model", "nnclr_resnt"],
        ["serve", "--port", "0", "--store", "new", "--backend", "turbo"],
        [*demo, "nowhere"],
        [*demo, "empty"],
        [*demo, str(photos), "--model", "nnclr_vit_bas"],
        *(["store", *words.split(), "--store", "nowhere"] for words in WORDS_ON_A_STORE),
        ["store", "create", "a/b", "--store", "new", "--dim", "4"],
        ["store", "create", "d", "--store", "new", "--dim", "0"],
        ["store", "create", "d", "--store", "new", "--dim", "4", "--model", "random:test_resnet"],
        ["store", "create", "d", "--store", "new", "--dim", "4", "--metric", "x"],
        ["store", "create", "d", "--store", "new", "--dim", "4", "--index", "tree"],
        ["store", "create", "d", "--store", "new", "--dim", "4", "--precision", "f8"],
        ["store", "create", "d", "--store", "new", "--dim", "4", "--indexed", 'a"b'],
        ["store", "create", "d", "--store", "new", "--model", "nnclr_vit_smal"],
        ["store", "reembed", "c", "--store", "store", "--model", "other"],
        ["probe", "fit", "notes.txt", "--out", "probe"],
        ["pretrain", "nope", "--data", str(photos), "--out", "run"],
        ["pretrain", "small_cpu", "--data", str(photos), "--out", "run", "--set", "nope=1"],
        *(["pretrain", "small_cpu", "--settings", "--set", wrong] for wrong in ("epochs=many", "epochs", "epochs=0")),
        ["pretrain", "small_cpu"],
        ["pretrain", "small_cpu", "--data", str(photos), "--out", "runn", "--resume"],
        ["pretrain", "auto", "--data", "nowhere", "--out", "run"],
        ["pretrain", "auto", "--data", str(photos), "--out", "run", "--init", "nope"],
        ["ablate", "k", "--data", "nowhere"],
        ["eval", "knn", "pixels", "--data", "nowhere"],
        ["card", str(model), "--overwrite"],
    ]
    failing = [
        [*search[:2], "--collection", "d", "--store", "store"],
        ["search", "notes.txt", *search[2:]],
        ["search", "--id", "nobody", *search[2:]],
        ["attention", photo, "--target", "notes.txt"],
        ["attention-grid", "nowhere.jpg"],
        ["card", "nowhere"],
        ["card", "run"],
        ["publish", "run", "me/photos", "--dry-run"],
        ["serve", "--port", str(taken), "--store", "new"],
        ["store", "reembed", "e", "--store", "store", "--model", str(model)],
    ]
    valid = [by_id, ["search", "--vector-from", "fits.npy", *search[2:]]]
    valid += [["pretrain", "small_cpu", "--settings", "--set", "epochs=3"]]
    calls = [*wrong, *failing, *valid, ["demo", "--port", "99999"]]
    *results, first, second, settings, usage = in_another_process(calls, WITHOUT_TORCH)
    for call, (code, out, err) in zip([*wrong, *failing], results, strict=True):
        assert (err.startswith("Error: "), err.count("\n"), out) == (True, 1, ""), (call, err)
        assert code == (2 if call in wrong else 1), (call, err)
    assert all(str(Path("run/encoder")) in results[calls.index(call)][2] for call in failing if "run" in call)
    assert [first[0], second[0]] == [0, 0], "searches without images need no torch"
    assert (settings[0], "epochs" in settings[1], "Hardware" in settings[1]) == (0, True, True)
    assert (usage[0], "Invalid value for '--port'" in usage[2]) == (2, True)
    assert sorted(tmp_path.iterdir()) == before, "no files may remain"
