"""What MilvusStore promises beyond the congruence with the other store: limits, failures, other people's data."""

import fcntl
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import numpy as np
import pytest
from waiting import free_port

from nnclr_hub.errors import (
    CollectionNotFound,
    InvalidRequest,
    MissingDependency,
    NNCLRHubError,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
    StoreUnreachable,
)
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.milvus import rows, search
from nnclr_hub.store.milvus.names import decode, encode
from nnclr_hub.store.milvus.where import Dialect, plan

pytest.importorskip("pymilvus", reason="pymilvus is not installed")
rng = np.random.default_rng(0)
VECTORS = rng.normal(size=(300, 4)).astype(np.float32)


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "x.milvus.db")) as store:
        yield store


def items(n, **metadata):
    return [Item(f"i{i}", VECTORS[i], {"n": i, **metadata}) for i in range(n)]


# ------------------------------------------------------------------------------ names and expressions


@pytest.mark.parametrize("name", ["a", "a_b", "a.b", "_", "0", "A~-._z", "." * 128, "_" * 128, "x" * 128, ".-~_" * 32])
def test_every_name_has_one_of_its_own_in_milvus(name):
    assert decode(encode(name)) == name
    assert encode(name).isidentifier()
    assert len(encode(name)) <= 255


@pytest.mark.parametrize("name", ["photos", "nnclr_", "nnclr_a.b", "nnclr_a_x", "nnclrx_!", "", "nnclr_a_"])
def test_a_name_that_is_not_ours_has_no_meaning(name):
    assert decode(name) is None


def test_nothing_of_the_users_stands_in_an_expression_as_it_is():
    """Keys and strings are hashed or in hex: an expression has no quote, backslash or letter of theirs."""
    evil = '") or id != "' + "\\"
    where = {kind: [{"key": "k' or 1", "match": evil}, {"key": "k", "prefix": evil}] for kind in ("must", "must_not")}
    expression = plan(where, Dialect()).expression
    assert evil not in expression
    assert "k'" not in expression
    assert "\\" not in expression
    assert '"' not in expression.replace('facets["', "").replace('"]', "").replace('"s', "").replace('")', "").replace(
        '%"', ""
    )


# ------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    "uri", ["milvus://", "milvus://host:port", "milvus://h:1/a/b", "milvus://h:1?x=1", "milvus://h:99999"]
)
def test_an_invalid_address_is_refused(uri):
    with pytest.raises(InvalidRequest):
        open_store(uri)


def test_no_error_shows_a_password():
    for uri in (f"milvus://me:secret@127.0.0.1:{free_port()}", "milvus://me:secret@h:port"):
        with pytest.raises(NNCLRHubError) as refusal:
            open_store(uri)
        assert "secret" not in str(refusal.value)


def test_an_unreachable_server_is_reported_within_ten_seconds():
    begun = time.monotonic()
    with pytest.raises(StoreUnreachable) as caught:
        open_store(f"milvus://127.0.0.1:{free_port()}")
    assert "acknowledged" not in str(caught.value)  # nothing has been sent that could have been
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("package", ["pymilvus", "milvus_lite.adapter.grpc.server"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=r"pip install 'nnclr_hub\[scale\]'"):
        open_store(str(tmp_path / "x.milvus.db"))


def test_a_file_that_another_process_serves_is_locked(tmp_path):
    path = tmp_path / "x.milvus.db"
    open_store(str(path)).close()
    with (path / "LOCK").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreLocked):
            open_store(str(path))
    open_store(str(path)).close()


def test_two_stores_of_one_process_share_a_file(tmp_path):
    with open_store(str(tmp_path / "x.milvus.db")) as one:
        one.create("c", CollectionSpec(4)).upsert(items(3))
        with open_store(str(tmp_path / "x.milvus.db"), read_only=True) as other:
            assert other.get("c").count() == 3
        assert one.get("c").count() == 3
    with pytest.raises(StoreReadOnly):
        one.get("c")


# ------------------------------------------------------------------------------ what else is in Milvus


def test_items_that_threads_add_at_once_survive_a_crash(tmp_path, monkeypatch):
    """Milvus Lite itself lets two threads begin one log, which then has the rows of one of them."""
    wal = pytest.importorskip("milvus_lite.storage.wal")
    begin = wal.pa.ipc.new_stream

    def begin_slowly(*arguments):
        time.sleep(0.05)
        return begin(*arguments)

    monkeypatch.setattr(wal.pa.ipc, "new_stream", begin_slowly)
    with open_store(str(tmp_path / "x.milvus.db")) as store, open_store(str(tmp_path / "x.milvus.db")) as same:
        store.create("c", CollectionSpec(4))
        with ThreadPoolExecutor(8) as threads:
            both = [one.get("c") for one in (store, same)]
            list(threads.map(lambda item: both[item.metadata["n"] % 2].upsert([item]), items(8)))
        shutil.copytree(tmp_path / "x.milvus.db", tmp_path / "y.milvus.db")  # as a killed process leaves it
    with open_store(str(tmp_path / "y.milvus.db")) as killed:
        assert killed.get("c").count() == 8


def test_other_peoples_collections_are_left_alone(store):
    """Not listed, and not dropped; one under a name of ours is refused by name."""
    client = store.connection.client
    client.create_collection("theirs", dimension=4)
    assert store.list() == []
    client.create_collection(encode("odd"), dimension=4)
    with pytest.raises(CollectionNotFound):
        store.drop("theirs")
    with pytest.raises(StoreCorrupt):
        store.get("odd")
    assert client.has_collection("theirs")


def test_a_collection_of_another_format_is_refused(store):
    store.create("c", CollectionSpec(4))
    about = {rows.SPEC_PROPERTY: json.dumps({**asdict(CollectionSpec(4)), "facets": 1})}
    store.connection.client.alter_collection_properties(encode("c"), properties=about)
    with pytest.raises(StoreTooNew, match="nnclr store export"):
        store.get("c")


def test_a_create_that_a_crash_cut_short_is_finished_by_get(store, tmp_path):
    """Without index, and not loaded."""
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


def test_transformed_vectors_are_refused(store):
    with pytest.raises(InvalidRequest):
        store.create("white", CollectionSpec(4, vectors="whiten"))
    assert store.list() == []
    assert store.create("decided", CollectionSpec(4, fingerprint="f", vectors="auto")).spec.vectors == "raw"


def test_vectors_longer_than_milvus_has_are_refused(store):
    with pytest.raises(InvalidRequest):
        store.create("c", CollectionSpec(40_000))


# ------------------------------------------------------------------------------ writing and searching


def test_a_request_too_large_for_milvus_is_written_in_steps(store, monkeypatch):
    """If a step fails, the error reports how many items are stored."""
    monkeypatch.setattr(rows, "_REQUEST", 10_000)
    collection = store.create("c", CollectionSpec(4))
    call, sent = store.connection.client.upsert, []

    def upsert(name, rows, **options):
        sent.append(len(rows))
        if len(sent) == 3:
            raise store.connection.pymilvus.MilvusException(message="no room")
        return call(name, rows, **options)

    monkeypatch.setattr(store.connection.client, "upsert", upsert)
    with pytest.raises(StoreError):
        collection.upsert(items(100))
    assert collection.count() == sum(sent[:2])
    collection.upsert(items(100))
    assert collection.count() == 100


def test_search_looks_on_until_k_are_found(store):
    """The filter's expression passes 299 strings alike in what a facet keeps; one is meant, the farthest."""
    collection = store.create("c", CollectionSpec(4, metric="l2"))
    far = int(np.linalg.norm(VECTORS - VECTORS[0], axis=1).argmax())
    collection.upsert([Item(f"i{i}", VECTORS[i], {"s": "x" * 200 + str(i)}) for i in range(300)])
    where = {"must": [{"key": "s", "match": "x" * 200 + str(far)}]}
    assert [match.id for match in collection.search(VECTORS[0], 1, where)] == [f"i{far}"]
    assert collection.count(where) == 1


def test_search_reads_everything_where_milvus_stops(store, monkeypatch):
    """Beyond its largest k, and where an approximate index returns fewer than there are."""
    collection = store.create("c", CollectionSpec(4, metric="dot"))
    collection.upsert([Item(f"i{i}", VECTORS[i], {"s": "x" * 200 + str(i % 2)}) for i in range(300)])
    monkeypatch.setattr(search, "_MAX_K", 20)
    where = {"must": [{"key": "s", "match": "x" * 200 + "1"}]}
    want = sorted(range(1, 300, 2), key=lambda i: -float(VECTORS[i] @ VECTORS[0]))
    found = collection.search(VECTORS[0], 15, where)
    assert [match.id for match in found] == [f"i{i}" for i in want[:15]]
    assert [match.score for match in found] == pytest.approx(
        [float(VECTORS[i] @ VECTORS[0]) for i in want[:15]], abs=1e-5
    )


def test_verify_finds_a_changed_vector_and_repair_takes_it_out(store):
    """Its metadata is saved to a file, and the rest is found as before."""
    collection = store.create("c", CollectionSpec(4))
    collection.upsert(items(50))
    client, name = store.connection.client, encode("c")
    fields = ["id", "vector", "metadata", "facets", "thumbnail", "crc"]
    (row,) = client.get(name, ids=["i7"], output_fields=fields)
    client.upsert(name, [{**{field: row[field] for field in fields}, "vector": VECTORS[9]}])
    report = collection.verify()
    assert (report.items, report.damaged, report.ok) == (50, ("i7",), False)
    repaired = collection.repair()
    assert (repaired.items, repaired.removed) == (49, ("i7",))
    with open(repaired.kept_in) as handle:
        assert [json.loads(line) for line in handle] == [{"id": "i7", "metadata": {"n": 7}}]
    assert collection.verify().ok


# ------------------------------------------------------------------------------ indexes of metadata


def test_indexed_keys_have_indexes_of_the_paths_that_filters_read(store, monkeypatch):
    """Milvus Lite refuses such indexes, so they are recorded as pymilvus would send them to a server."""
    from pymilvus.client.prepare import Prepare

    client, made = store.connection.client, {}
    real = {name: getattr(client, name) for name in ("create_index", "list_indexes", "drop_index")}

    def create_index(name, params, **options):
        if params[0].field_name != "facets":
            return real["create_index"](name, params, **options)
        request = Prepare.create_index_request(name, "facets", params[0].get_index_configs())
        made[params[0].index_name] = {one.key: one.value for one in request.extra_params}

    def list_indexes(name, field="", **options):
        return list(made) if field == "facets" else real["list_indexes"](name, field, **options)

    monkeypatch.setattr(client, "create_index", create_index)
    monkeypatch.setattr(client, "list_indexes", list_indexes)
    monkeypatch.setattr(client, "drop_index", lambda name, index, **options: made.pop(index))

    def paths():
        assert {one["index_type"] for one in made.values()} == {"INVERTED"}
        return {options["json_path"]: options["json_cast_type"] for options in made.values()}

    store.create("without", CollectionSpec(4, indexed=("label",)))
    assert not made
    monkeypatch.setenv("NNCLR_MILVUS_INDEXES", "1")
    collection = store.create("c", CollectionSpec(4, indexed=("label", "a.b")))
    assert len(paths()) == 6
    for key in ("label", "a.b"):
        for condition, kind in (
            ({"match": "x"}, "varchar"),
            ({"range": {"gt": 1}}, "double"),
            ({"date": {"gt": "2026-01-01"}}, "double"),
        ):
            expression = plan({"must": [{"key": key, **condition}]}, Dialect()).expression
            assert [cast for path, cast in paths().items() if path in expression] == [kind]
    before = dict(made)
    collection.change_indexed(["label", "n"])
    assert len(made.keys() & before.keys()) == 3
    assert len(made) == 6
    collection.change_indexed([])
    assert not made


def test_a_server_that_refuses_indexes_of_metadata_filters_without_them(store, monkeypatch):
    monkeypatch.setenv("NNCLR_MILVUS_INDEXES", "1")
    collection = store.create("c", CollectionSpec(4, indexed=("n", "color")))
    collection.upsert([*items(5, color="red"), Item("other", VECTORS[9], {"color": 1})])
    collection.change_indexed(["color"])
    assert store.connection.call("list_indexes", encode("c"), "facets") == []
    found = collection.search(VECTORS[9], 9, {"must_not": [{"key": "color", "match": "red"}]})
    assert [match.id for match in found] == ["other"]
