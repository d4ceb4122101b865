"""nnclr store --server: the verbs print and do the same as in a store of this machine."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pytest
from commands import error_line, nnclr

from nnclr_hub import Client
from nnclr_hub.client.transport import Connection
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.store.folder.collection import EmbeddedCollection
from nnclr_hub.store.reports import VerifyReport
from nnclr_hub.workbench import duplicates, reembedding
from nnclr_hub.workbench.metadata_keys import PIXEL_HASH

KEY = "0123456789abcdefghijklmnop"
RED = '{"must": [{"key": "label", "match": "red"}]}'


@pytest.fixture(scope="module")
def server(model, make_model, photos, tmp_path_factory, serve):
    """Run a server with a second model, which has the same name for the server and in the folder of its parent."""
    folder = tmp_path_factory.mktemp("verbs")
    shutil.copytree(photos / "cat", folder / "photos" / "cat")
    options = {"write_keys": (f"tests:{KEY}",), "source_folders": [str(folder / "photos")]}
    for running in serve(model, folder / "store", **options):
        running.photos, running.other = folder / "photos", folder / "another"
        shutil.copytree(make_model(seed=1), running.other)
        running.engines.get(str(running.other))
        yield running


@pytest.fixture
def both(server, tmp_path, monkeypatch):
    """both(*words) -> the answer of a verb, which must be the same for a store and for a server with equal items."""
    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    places = ("--store", tmp_path / "store"), ("--server", server.url)

    def call(*words) -> tuple[int, str, str]:
        here, there = (nnclr("store", *words, *place) for place in places)
        shown_here, shown_there = (
            answer[1].replace(" ".join(map(str, place)), "PLACE")
            for answer, place in zip((here, there), places, strict=True)
        )
        assert (here[0], shown_here) == (there[0], shown_there), here[2] + there[2]
        return here

    call("create", "v", "--dim", 4, "--indexed", "label")
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    items = [Item(f"i{n}", row, {"label": ("red", "blue")[n % 2], "n": n}) for n, row in enumerate(rows)]
    with open_store(tmp_path / "store") as store:
        store.get("v").upsert(items)
    with Client(server.url, KEY) as client:
        client.collection("v").upsert(items)
        yield call
        for info in client.collections.list():
            client.collections.drop(info.name)


def listed(server) -> list[tuple[str, list[str]]]:
    code, out, err = nnclr("store", "list", "--server", server.url, "--json")
    assert code == 0, err
    return [(one["name"], one["aliases"]) for one in json.loads(out)]


def test_each_verb_answers_the_same_over_rest(both, server, tmp_path):
    assert both("create", "w", "--dim", 3, "--metric", "l2", "--json")[0] == 0
    assert json.loads(both("facets", "v", "label", "n", "--json")[1])[0]["items"] == 9
    both("facets", "v", "label", "--where", RED)
    assert json.loads(both("set", "v", '{"note": {"a": 1}}', "--where", RED, "--json")[1])["updated"] == 5
    table = tmp_path / "labels.csv"
    table.write_text("id,label\ni0,green\ni1,green\ni2,black\nnobody,black\n")
    assert "3 items set" in both("set", "v", "--from", table, "--column", "label")[1]
    assert '"green"' in both("facets", "v", "label", "--json")[1]
    assert json.loads(both("indexed", "v", "label", "n", "--json")[1])["indexed"] == ["label", "n"]
    assert both("indexed", "v")[0] == 0
    assert "2 items deleted; 1 ids" in both("delete", "v", "--id", "i0", "--id", "i1", "--id", "nobody")[1]
    assert json.loads(both("delete", "v", "--where", RED, "--yes", "--json")[1])["deleted"] == 3
    both("alias", "now", "v")
    both("alias", "later", "now")
    assert listed(server) == [("v", ["later", "now"]), ("w", [])]
    both("unalias", "later")
    for verb in ("snapshot", "compact"):
        assert both(verb, "v")[0] == 0
    assert json.loads(both("verify", "v", "--json")[1])[0]["ok"]
    assert both("drop", "w", "--yes")[0] == 0
    assert listed(server) == [("v", ["now"])]


def test_verify_is_a_job_without_the_deadline_of_a_request(both, server, monkeypatch):
    with Client(server.url, KEY) as client:
        assert both("verify", "v")[0] == 0
        assert client.jobs.list(1)[0].kind == "verify"
        assert client.jobs.list(1)[0].state == "done"
    report = VerifyReport(9, ("i1",), (), ("i2",), 0.5, ("metadata",))
    monkeypatch.setattr(EmbeddedCollection, "verify", lambda *_: report)
    code, out, _ = both("verify", "v", "--json")
    assert (code, json.loads(out)) == (1, [{"name": "v", "ok": False, **json.loads(json.dumps(asdict(report)))}])


def test_errors_are_the_same_over_rest(both, server, monkeypatch):
    for words, code in (
        (("facets", "nothing", "label"), 1),
        (("set", "v", "[]", "--id", "i0"), 2),
        (("delete", "v"), 2),
        (("indexed", "v", "a", "--none"), 2),
        (("drop", "nothing", "--yes"), 1),
        (("verify", "nothing"), 1),
        (("create", "a/b", "--dim", "3"), 2),
        (("create", "v", "--dim", "4", "--indexed", "label"), 1),
        (("unalias", "nothing"), 1),
    ):
        assert both(*words)[0] == code
    error_line(nnclr("store", "facets", "v", "label", "--store", "other", "--server", server.url), 2)
    monkeypatch.setenv("NNCLR_API_KEY", "wrong-" + KEY)
    assert "NNCLR_API_KEY" in error_line(nnclr("store", "facets", "v", "label", "--server", server.url), 1)
    monkeypatch.setenv("MY_KEY", KEY)
    assert nnclr("store", "facets", "v", "label", "--server", server.url, "--api-key-env", "MY_KEY")[0] == 0


@pytest.fixture
def copies(both, server, tmp_path):
    """Fill both collections with sixty items: three with equal pixels, two with nearly equal vectors, one bare."""
    rows = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32)
    rows[-1] = rows[0] * 1.0001
    items = [
        Item(f"i{n:02}", row, {"path": f"{n}.jpg", "root": f"folder{n % 2}", PIXEL_HASH: str(max(n, 2))})
        for n, row in enumerate(rows)
    ]
    items[-1] = Item("i59", rows[-1])
    with open_store(tmp_path / "store") as store, Client(server.url, KEY) as client:
        for collection in (store.get("v"), client.collection("v")):
            collection.delete([f"i{n}" for n in range(9)])
            collection.upsert(items)


@pytest.mark.usefixtures("copies")
def test_duplicates_are_the_same_over_rest(both, server, monkeypatch):
    found = json.loads(both("duplicates", "v", "--json")[1])
    assert found == {
        "collection": "v",
        "found": 1,
        "surplus": 2,
        "groups": [[{"id": f"i{n:02}", "path": f"folder{n % 2}/{n}.jpg"} for n in range(3)]],
        "without_hash": 1,
    }
    assert "3 alike:" in both("duplicates", "v")[1]
    for near in ("auto", "0.99999"):
        answer = json.loads(both("duplicates", "v", "--near", near, "--exact", "--json")[1])
        assert [[one["path"] for one in group] for group in answer["groups"]] == [["folder0/0.jpg", "i59"]]
    for wrong in (("--near", 7), ("--near", "nan"), ("--near", "low"), ("--exact",)):
        assert both("duplicates", "v", *wrong)[0] == 2
    both("alias", "now", "v")
    assert both("duplicates", "now", "--json")[0] == 0
    both("create", "few", "--dim", 4)
    assert both("duplicates", "few", "--near", "auto")[0] == 2
    assert both("duplicates", "nothing")[0] == 1
    monkeypatch.setattr(duplicates, "MAX_IDS", 1)
    code, out, _ = nnclr("store", "duplicates", "v", "--server", server.url)
    assert (code, "3 alike:\n  0.jpg\n  and 2 more\n" in out, "1 groups with 3 items" in out) == (0, True, True)


def test_reembedding_is_the_same_over_rest(both, server, model, tmp_path, monkeypatch):
    kept = sorted(server.photos.glob("*/*"))
    assert nnclr("index", server.photos, "--collection", "c", "--store", tmp_path / "store", "--model", model)[0] == 0
    server.bench.index_folder("c", server.photos)
    both("alias", "now", "c")
    for path in kept[:3]:
        path.unlink()
    monkeypatch.chdir(server.other.parent)
    again = ("reembed", "now", "--model", server.other.name)
    assert both(*again)[0] == 1
    assert any(info.name.startswith("c.") for info in server.bench.store.list())
    for _ in range(2):
        assert both("reembed", "now", "--abandon")[0] == 0
    assert not any(info.name.startswith("c.") for info in server.bench.store.list())
    assert both("reembed", "nothing", "--abandon")[0] == 1
    assert both("reembed", "now")[0] == both("reembed", "now", "--model", "nowhere")[0] == 2
    with monkeypatch.context() as few:
        few.setattr(reembedding, "MAX_NAMED", 1)
        few.setattr("nnclr_hub.cli.index.SHOWN", 1)
        there = nnclr("store", *again, "--skip-missing", "--server", server.url)
        here = nnclr("store", *again, "--skip-missing", "--store", tmp_path / "store")
    for code, out, err in (here, there):
        assert code == 0, err
        assert ("3 left out" in out, "file is missing" in err, "... and 2 more" in err) == (True, True, True), err
    assert f"--server {server.url}` deletes it" in there[1]
    assert here[1].replace(f"--store {tmp_path / 'store'}", "") == there[1].replace(f"--server {server.url}", "")
    assert json.loads(both(*again, "--json")[1])["collection"] is None
    assert both("duplicates", "now", "--json")[0] == 0
    report = json.loads(both("reembed", "c.old", "--model", server.other.name, "--skip-missing", "--json")[1])
    assert (report["left_out_count"], report["items"]) == (3, len(kept) - 3)


def test_an_interrupted_command_names_the_job_that_continues(both, server, monkeypatch, caplog):
    send = Connection.send

    def interrupted(self, call):
        if (call.method, "/jobs/" in call.path) == ("GET", True):
            raise KeyboardInterrupt
        return send(self, call)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send", interrupted)
        for words in (("duplicates", "v"), ("verify", "v"), ("compact", "v")):
            caplog.clear()
            code, _, _ = nnclr("store", *words, "--server", server.url)
            with Client(server.url, KEY) as client:
                job = client.jobs.list(1)[0]
            assert (code, job.kind, job.id in caplog.text) == (130, words[0], True)
    with Client(server.url, KEY) as client:
        assert client.jobs.wait(job.id).state == "done"
