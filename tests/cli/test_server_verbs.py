"""nnclr store --server: the verbs print and do the same as in a store of this machine."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from commands import error_line, nnclr

from nnclr_hub import Client
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.store.embedded.collection import EmbeddedCollection
from nnclr_hub.store.reports import VerifyReport

KEY = "0123456789abcdefghijklmnop"
RED = '{"must": [{"key": "label", "match": "red"}]}'


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve):
    yield from serve(model, tmp_path_factory.mktemp("verbs") / "store", write_keys=(f"tests:{KEY}",))


@pytest.fixture
def both(server, tmp_path, monkeypatch):
    """both(*words) -> the answer of a verb, which must be the same for a store and for a server with equal items."""
    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    places = ("--store", tmp_path / "store"), ("--server", server.url)

    def call(*words) -> tuple[int, str, str]:
        here, there = (nnclr("store", *words, *place) for place in places)
        assert (here[0], here[1]) == (there[0], there[1]), here[2] + there[2]
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
    assert "3 items set; 1 ids" in both("set", "v", "--from", table, "--column", "label")[1]
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
