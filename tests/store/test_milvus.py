"""What MilvusStore promises beyond the contract: filters that it cannot decide, limits, addresses, other clients.

These tests use Milvus Lite instead of a server; `test_milvus_servers.py` runs on real ones.
"""

import fcntl
import re
import sys

import numpy as np
import pytest
from store.filter_oracle import KEYS, Dice, passes
from waiting import free_port

from nnclr_hub.errors import (
    CollectionNotFound,
    InvalidFilter,
    InvalidRequest,
    MissingDependency,
    NNCLRHubError,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
)
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item, VectorStore
from nnclr_hub.store.milvus import MilvusStore
from nnclr_hub.store.milvus.connection import encode

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
VECTORS = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
REFUSED = [  # filters that Milvus cannot decide
    {"key": "place", "geo": {"lat": 1, "lon": 1, "radius": 5}},
    {"key": "label", "prefix": "é" * 61},
    {"key": "label", "range": {"lt": "x" * 120}},
    {"key": "label", "range": {"gt": 2**53}},
    {"key": "label", "range": {"gt": 0, "lt": -(2.0**53)}},
    {"key": "label", "date": {"gte": "2256-01-01"}},
    {"key": "undeclared", "match": 1},
    {"key": "label.path", "exists": True},
]


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "x.milvus.db")) as store:
        yield store


def items(n, **metadata):
    return [Item(f"i{i}", VECTORS[i], {"n": i, **metadata}) for i in range(n)]


def is_decidable(where: dict) -> bool:
    """Return whether Milvus can decide a filter, by the rules of the docs."""
    for one in (one for part in where.values() for one in part):
        if "key" not in one:
            if "ids" not in one and not is_decidable(one):
                return False
            continue
        bounds = [one[kind] for kind in ("range", "length") if isinstance(one.get(kind), dict)]
        numbers = [abs(bound) for given in bounds for bound in given.values() if not isinstance(bound, str)]
        texts = [bound for given in bounds for bound in given.values() if isinstance(bound, str)]
        if "geo" in one or len(one.get("prefix", "").encode()) > 120:
            return False
        if any(number >= 2**53 for number in numbers) or any(len(text.encode()) > 119 for text in texts):
            return False
    return True


def check_filters(store: VectorStore, number: int, seed: int = 0) -> None:
    """Compare random filters with a literal reading, also after edits; and searches with the order of all scores."""
    dice = Dice(seed)
    collection = store.create("oracle", CollectionSpec(4, indexed=tuple(KEYS), index="flat"))
    truth = {f"i{i}": dice.metadata() for i in range(200)}
    vectors = {id: dice.rng.normal(size=4).astype(np.float32) for id in truth}
    collection.upsert([Item(id, vectors[id], metadata) for id, metadata in truth.items()])
    decided = refused = 0
    while decided < number:
        if decided % 50 == 49:
            id = dice.one(list(truth))
            truth[id] = dice.metadata()
            collection.update_metadata(truth[id], ids=[id], replace=True)
        where = dice.where(list(truth))
        if not is_decidable(where):
            refused += 1
            with pytest.raises(InvalidFilter):
                collection.count(where)
            continue
        decided += 1
        want = sorted(id for id, metadata in truth.items() if passes(where, id, metadata))
        found = [item.id for item in collection.scroll(limit=1000, where=where, with_vector=False).items]
        assert found == want, where
        assert collection.count(where) == len(want), where
        query = dice.rng.normal(size=4).astype(np.float32)
        scores = {id: float(vectors[id] @ query) / float(np.linalg.norm(vectors[id])) for id in want}
        best = sorted(want, key=lambda id, scores=scores: -scores[id])[:5]
        assert [match.id for match in collection.search(query, 5, where)] == best, where
    assert refused


def test_filters_agree_with_a_literal_reading_of_each_item(store):
    check_filters(store, 100)


@pytest.mark.parametrize("condition", REFUSED, ids=lambda one: next(kind for kind in one if kind != "key"))
def test_what_milvus_cannot_decide_is_refused_by_every_call(store, condition):
    collection = store.create("c", CollectionSpec(4))
    collection.upsert(items(3))
    for where in ({"must": [condition]}, {"must_not": [{"should": [condition]}]}):
        for call in (
            lambda where: collection.search(VECTORS[0], where=where),
            lambda where: collection.scroll(where=where),
            lambda where: collection.facets(["n"], where),
            lambda where: collection.delete(where=where),
            lambda where: collection.update_metadata({"n": 0}, where=where),
            collection.count,
        ):
            with pytest.raises(InvalidFilter) as refusal:
                call(where)
            assert refusal.value.code == "invalid_filter"
    assert collection.count() == 3


def test_the_longest_allowed_bounds_and_strings_are_exact(store):
    values = ["x" * 119, "x" * 120, "x" * 121, "x" * 120 + "é", "x" * 500, 2**53 - 1, 2**53, 2**53 + 1, 2**62 + 1]
    dates = ["1684-01-01", "2024-02-29T12:00:00.000001Z", "2024-02-29T12:00:00.000002Z", "9999-12-31"]
    collection = store.create("c", CollectionSpec(4))
    collection.upsert([Item(f"i{i}", VECTORS[i], {"label": value}) for i, value in enumerate([*values, *dates])])
    truth = {f"i{i}": {"label": value} for i, value in enumerate([*values, *dates])}
    conditions = [{"match": one} for one in values] + [{"in": values[:3]}, {"prefix": "x" * 120}]
    conditions += [{"range": {name: bound}} for name in ("gt", "gte", "lt", "lte") for bound in ("x" * 119, 2**53 - 1)]
    conditions += [{"date": {name: bound}} for name in ("gt", "gte", "lt", "lte") for bound in dates[1:3]]
    for condition in conditions:
        where = {"must": [{"key": "label", **condition}]}
        want = {id for id, metadata in truth.items() if passes(where, id, metadata)}
        assert {item.id for item in collection.scroll(where=where).items} == want, condition


def test_nothing_of_the_users_stands_in_an_expression_as_it_is(store):
    evil = ['+") or id != "', "\\", "'", "%_", "a\nb", "\u2028", "[]:a", "?", '"', "x" * 81]
    keys = ["label", "a b", "k'", "#", "a:b", "a=", "new\nline", "é"]
    collection = store.create("c", CollectionSpec(4, indexed=tuple(keys)))
    collection.upsert([Item(f"i{i}", VECTORS[i], dict.fromkeys(keys, text)) for i, text in enumerate(evil)])
    for key in keys:
        for i, text in enumerate(evil):
            for condition in (
                {"match": text},
                {"in": [text, "no"]},
                {"prefix": text},
                {"range": {"gte": text, "lte": text}},
            ):
                found = collection.scroll(where={"must": [{"key": key, **condition}]}).items
                assert [item.id for item in found] == [f"i{i}"], (key, text, condition)


def test_items_with_too_many_values_are_refused_as_a_whole(store):
    collection = store.create("c", CollectionSpec(4, indexed=("tags",)))
    many = list(range(4097))
    for metadata in ({"tags": many}, {"x": "é" * 32_764}):
        with pytest.raises(InvalidRequest):
            collection.upsert([*items(2), Item("many", VECTORS[5], metadata)])
        assert collection.count() == 0
    collection.upsert([Item("full", VECTORS[6], {"x": "é" * 32_763})])
    collection.delete(["full"])
    collection.upsert([*items(2), Item("many", VECTORS[5], {"other": many, "tags": many[:4000]})])
    for edit in (
        lambda: collection.update_metadata({"tags": many}, where={"must_not": [{"ids": []}]}),
        lambda: collection.update_each({"i0": {"n": 7}, "i1": {"tags": many}}),
    ):
        with pytest.raises(InvalidRequest):
            edit()
    assert [item.metadata.get("n") for item in collection.get(["i0", "i1"])] == [0, 1]
    assert collection.count({"must": [{"key": "tags", "contains": 3999}]}) == 1


@pytest.mark.parametrize("package", ["pymilvus", "milvus_lite.adapter.grpc.server"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=r"pip install 'nnclr_hub\[scale\]'"):
        open_store(str(tmp_path / "x.milvus.db"))


def test_a_file_has_one_user(tmp_path):
    path = tmp_path / "x.milvus.db"
    with open_store(str(path)) as one, pytest.raises(StoreLocked):
        open_store(str(path), read_only=True)
    with pytest.raises(StoreReadOnly):
        one.get("c")
    with (path / "LOCK").open("ab") as other:  # of another process
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreLocked):
            open_store(str(path))
    open_store(str(path)).close()


def test_other_peoples_collections_are_left_alone(store):
    """Not listed, and not dropped; one under a name of ours is refused by name."""
    client = store.connection.client
    for name in ("theirs", "nnclr_", "nnclr_a_x", "nnclrx_1"):
        client.create_collection(name, dimension=4)
    assert store.list() == []
    client.create_collection(encode("odd"), dimension=4)
    with pytest.raises(CollectionNotFound):
        store.drop("theirs")
    with pytest.raises(StoreCorrupt):
        store.get("odd")
    assert client.has_collection("theirs")


def test_a_collection_of_another_format_is_refused(store):
    store.create("c", CollectionSpec(4))
    client, name = store.connection.client, encode("c")
    text = client.describe_collection(name)["properties"]["nnclr_spec"]
    client.alter_collection_properties(name, properties={"nnclr_spec": re.sub('"format": [0-9]+', '"format": 2', text)})
    with pytest.raises(StoreTooNew, match="nnclr store export"):
        store.get("c")


def test_a_create_that_a_crash_cut_short_is_finished_by_get(tmp_path):
    """Without index, and not loaded."""
    with MilvusStore(str(tmp_path / "x.milvus.db")) as store:
        store.create("c", CollectionSpec(4)).upsert(items(20))
        client, name = store.connection.client, encode("c")
        client.release_collection(name)
        client.drop_index(name, "vector")
    with open_store(str(tmp_path / "x.milvus.db")) as again:
        assert [match.id for match in again.get("c").search(VECTORS[3], 1)] == ["i3"]


def test_a_collection_dropped_by_another_client_is_gone_by_name(store):
    collection = store.create("c", CollectionSpec(4))
    store.connection.client.drop_collection(encode("c"))
    with pytest.raises(CollectionNotFound):
        collection.upsert(items(1))


@pytest.mark.parametrize(
    "spec",
    [{"vectors": "whiten"}, {"dim": 40_000}, {"precision": "f16"}, {"index": "diskann"}],
    ids=lambda spec: next(iter(spec)),
)
def test_what_the_server_lacks_is_refused_before_anything_is_created(store, spec):
    with pytest.raises(InvalidRequest) as refusal:
        store.create("c", CollectionSpec(**{"dim": 4, **spec}))
    assert refusal.value.code == "invalid_request"
    assert store.list() == []
    assert store.create("decided", CollectionSpec(4, fingerprint="f", vectors="auto")).spec.vectors == "raw"


def test_a_filtered_search_is_one_request_and_so_is_a_write(store, monkeypatch):
    collection, sent = store.create("c", CollectionSpec(4, indexed=("n",))), []
    for name in ("search", "query", "upsert"):
        call = getattr(store.connection.client, name)
        monkeypatch.setattr(
            store.connection.client, name, lambda *a, name=name, call=call, **b: (sent.append(name), call(*a, **b))[1]
        )
    collection.upsert(items(300))
    for k in (1, 10, 400):
        collection.search(VECTORS[0], k, {"must_not": [{"key": "n", "in": [1, 2]}]}, with_vector=True)
    collection.count({"must": [{"key": "n", "range": {"gt": 5}}]})
    assert sent == ["upsert", *["search"] * 3, "query"]


def test_a_request_too_large_for_milvus_is_written_in_steps(store, monkeypatch):
    """If a step fails, the error reports how many items are stored."""
    collection = store.create("c", CollectionSpec(4))
    large = items(150, text="x" * 60_000)
    call, sent = store.connection.client.upsert, []

    def upsert(name, rows, **options):
        sent.append(len(rows))
        if len(sent) == 2:
            raise store.connection.pymilvus.MilvusException(message="no room")
        return call(name, rows, **options)

    monkeypatch.setattr(store.connection.client, "upsert", upsert)
    with pytest.raises(StoreError) as refusal:
        collection.upsert(large)
    assert f"The first {sent[0]} of 150" in str(refusal.value)
    assert collection.count() == sent[0] < 150
    collection.upsert(large)
    assert collection.count() == 150


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        *((f"milvus://{rest}", "invalid_request") for rest in ("", "h:port", "h:1/a/b", "h?x=1", "h#x", "[::1")),
        *(("milvus+tls://h:99999", "invalid_request"), ("http+milvus://h", "invalid_request")),
        *(("milvus://me:secret@h:port", "invalid_request"), ("milvus://h?token=secret&x=1", "invalid_request")),
        ("milvus://me:secret@127.0.0.1:{port}", "store_unreachable"),
        ("milvus+tls://127.0.0.1:{port}?token=secret", "store_unreachable"),
    ],
)
def test_what_is_no_server_is_refused_without_a_secret(uri, code):
    with pytest.raises(NNCLRHubError) as refusal:
        open_store(uri.format(port=free_port()))
    assert refusal.value.code == code
    assert "secret" not in str(refusal.value)
