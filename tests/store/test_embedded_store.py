"""The store against a dict and numpy, and its refusals."""

import json
import os
import stat
import threading
from dataclasses import replace

import numpy as np
import pytest

from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    DiskFull,
    FingerprintMismatch,
    InvalidRequest,
    ItemNotFound,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
)
from nnclr_hub.store import open_store
from nnclr_hub.store.ann.fold import SMALLEST_DELTA
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.embedded import recovery
from nnclr_hub.store.embedded.catalog import connect

DIM = 8


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "store")) as opened:
        yield opened


def vectors(n: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def brute_force(truth: dict[str, np.ndarray], query: np.ndarray, k: int, metric: str) -> list[tuple[str, float]]:
    """The answer by a loop over everything."""
    if metric == "l2":
        scored = [(id, -float(np.linalg.norm(vector - query))) for id, vector in truth.items()]
    else:
        scored = [(id, float(vector @ query)) for id, vector in truth.items()]
    return sorted(scored, key=lambda pair: -pair[1])[:k]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_random_operations_agree_with_a_dict_and_brute_force(tmp_path, metric, monkeypatch):
    """Upserts, replacements, deletions, snapshots and reopenings; the delta is small, so it is folded often."""
    monkeypatch.setattr("nnclr_hub.store.ann.fold.SMALLEST_DELTA", 32)
    rng = np.random.default_rng(1)
    truth: dict[str, np.ndarray] = {}
    store = open_store(str(tmp_path))
    collection = store.create("c", CollectionSpec(DIM, metric=metric))
    for step in range(120):
        ids = [f"i{n}" for n in rng.integers(0, 200, rng.integers(1, 12))]
        action = rng.random()
        if action < 0.6:
            batch = dict(zip(ids, vectors(len(ids), step), strict=True))
            collection.upsert([Item(id, vector, {"n": step}) for id, vector in batch.items()])
            truth |= batch
        elif action < 0.85:
            assert collection.delete(ids) == len(truth.keys() & set(ids))
            truth = {id: vector for id, vector in truth.items() if id not in ids}
        elif action < 0.92:
            collection.snapshot()
        else:
            store.close()
            store = open_store(str(tmp_path))
            collection = store.get("c")
        query = vectors(1, 1000 + step)[0]
        found = collection.search(query, 7)
        want = brute_force(truth, query, 7, metric)
        assert [match.id for match in found] == [id for id, _ in want]
        assert [match.score for match in found] == pytest.approx([score for _, score in want], abs=1e-5)
        assert collection.count() == len(truth)
    assert collection.verify().ok
    store.close()


def test_items_come_back_as_they_were_stored(store):
    collection = store.create("c", CollectionSpec(DIM))
    metadata = {"label": "chat noir", "n": 3, "x": 0.5, "none": None, "deep": {"a": [1, "é猫"]}, "ok": True}
    collection.upsert([Item("a.b~c_D-9", vectors(1)[0] * 5, metadata, b"jpeg"), Item("b", vectors(2)[1])])
    found = collection.get(["b", "missing", "a.b~c_D-9"])
    assert [item.id for item in found] == ["b", "a.b~c_D-9"]
    assert found[1].metadata == metadata
    assert found[1].thumbnail == b"jpeg"
    np.testing.assert_allclose(found[1].vector, vectors(1)[0], atol=1e-6)  # cosine: kept normalised
    assert collection.thumbnail("b") is None
    with pytest.raises(ItemNotFound, match="'zz'"):
        collection.thumbnail("zz")


def test_the_last_of_two_items_with_one_id_in_one_request_wins(store):
    collection = store.create("c", CollectionSpec(DIM))
    first, second = vectors(2)
    collection.upsert([Item("a", first), Item("a", second)])
    assert collection.count() == 1
    assert [match.id for match in collection.search(first, 5)] == ["a"]
    np.testing.assert_allclose(collection.get(["a"])[0].vector, second, atol=1e-6)


def test_pages_cover_everything_once_while_others_write(store):
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item(f"k{i:03}", v) for i, v in enumerate(vectors(95))])
    seen, cursor = [], None
    while True:
        page = collection.scroll(cursor, 10)
        seen += [item.id for item in page.items]
        collection.upsert([Item(f"k{len(seen) - 1:03}", vectors(1)[0])])  # replaced behind the cursor
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [f"k{i:03}" for i in range(95)]


def test_a_score_threshold_cuts_and_vectors_come_on_request(store):
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item(f"i{i}", v) for i, v in enumerate(vectors(50))])
    query = vectors(1)[0]
    every = collection.search(query, 50)
    some = collection.search(query, 50, score_threshold=0.2, with_vector=True)
    assert [m.id for m in some] == [m.id for m in every if m.score >= 0.2]
    np.testing.assert_allclose([m.vector @ query for m in some], [m.score for m in some], atol=1e-6)


def test_concurrent_requests_share_commits_and_none_is_lost(store):
    collection = store.create("c", CollectionSpec(DIM))
    before = collection._writer.commits
    threads = [
        threading.Thread(target=lambda i=i: collection.upsert([Item(f"t{i}", vectors(1, i)[0])])) for i in range(64)
    ]
    release = threading.Event()
    # while the writer is held, the others queue up behind it
    holder = threading.Thread(target=lambda: collection._writer.exclusively(lambda _: release.wait(120)))
    holder.start()
    for thread in threads:
        thread.start()
    release.set()
    for thread in [holder, *threads]:
        thread.join()
    assert collection.count() == 64
    assert collection._writer.commits - before < 64


def test_a_bad_request_in_a_group_harms_no_other(store, monkeypatch):
    collection = store.create("c", CollectionSpec(DIM))
    release = threading.Event()
    holder = threading.Thread(target=lambda: collection._writer.exclusively(lambda _: release.wait(120)))
    holder.start()
    outcomes: dict[str, object] = {}

    def fails(connection, changes):
        connection.execute("INSERT INTO items (id, metadata) VALUES ('half', '{}')")
        raise StoreError("its own mistake")

    def bad():
        with pytest.raises(StoreError, match="its own mistake"):
            collection._writer.submit(fails)
        outcomes["bad"] = True

    threads = [threading.Thread(target=bad)] + [
        threading.Thread(target=lambda i=i: collection.upsert([Item(f"g{i}", vectors(1, i)[0])])) for i in range(5)
    ]
    for thread in threads:
        thread.start()
    release.set()
    for thread in [holder, *threads]:
        thread.join()
    assert outcomes == {"bad": True}
    assert [item.id for item in collection.scroll().items] == [f"g{i}" for i in range(5)]


# ---- snapshots and recovery


def filled(folder, n=300):
    with open_store(str(folder)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item(f"i{i}", v) for i, v in enumerate(vectors(n))])
        collection.snapshot()
        collection.delete(["i3"])
        collection.upsert([Item("i4", vectors(1, 99)[0])])
        collection.snapshot()
        collection.upsert([Item("late", vectors(1, 98)[0])])
    truth = {f"i{i}": v for i, v in enumerate(vectors(n))} | {"i4": vectors(1, 99)[0], "late": vectors(1, 98)[0]}
    del truth["i3"]
    return truth


def agrees(folder, truth):
    with open_store(str(folder)) as store:
        collection = store.get("c")
        assert collection.count() == len(truth)
        for seed in range(5):
            query = vectors(1, 500 + seed)[0]
            found = [match.id for match in collection.search(query, 10)]
            assert found == [id for id, _ in brute_force(truth, query, 10, "cosine")]
        assert collection.verify().ok


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "empty", "swapped"])
@pytest.mark.parametrize("which", ["newest", "both"])
def test_a_damaged_index_file_costs_no_data(tmp_path, damage, which):
    truth = filled(tmp_path)
    files = sorted((tmp_path / "collections").glob("*/index-*.faiss"))
    assert len(files) == 2
    contents = [file.read_bytes() for file in files]
    for file in files[1:] if which == "newest" else files:
        data = bytearray(file.read_bytes())
        if damage == "truncated":
            file.write_bytes(data[: len(data) // 2])
        elif damage == "flipped":
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        elif damage == "missing":
            file.unlink()
        elif damage == "empty":
            file.write_bytes(b"")
        else:
            file.write_bytes(contents[0] if file == files[1] else contents[1])
    agrees(tmp_path, truth)


def test_an_index_that_disagrees_with_the_catalog_is_rebuilt(tmp_path, monkeypatch):
    truth = filled(tmp_path)
    original = recovery.load_snapshot

    def another(*arguments):
        state = original(*arguments)
        assert state is not None
        return replace(state, rids=state.rids + 10_000, delta_rids=state.delta_rids + 20_000)

    monkeypatch.setattr(recovery, "load_snapshot", another)
    agrees(tmp_path, truth)


def test_two_generations_are_kept_and_the_log_is_trimmed(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        for i in range(5):
            collection.upsert([Item(f"i{i}", vectors(1, i)[0])])
            collection.snapshot()
        files = sorted(file.name for file in (tmp_path / "collections").glob("*/index-*"))
        assert files == ["index-4.faiss", "index-5.faiss"]
        with collection._connections.reader() as connection:
            assert connection.execute("SELECT count(*), min(seq) FROM oplog").fetchone() == (1, 5)


def test_a_snapshot_is_synced_before_it_is_renamed_and_recorded_last(tmp_path, monkeypatch):
    """The order of steps c to g: fsync of the file, rename, fsync of the folder, and only then the row."""
    steps = []
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("a", vectors(1)[0])])
        real_fsync, real_replace = os.fsync, os.replace
        recorded = lambda: collection._connection.execute("SELECT count(*) FROM snapshots").fetchone()[0]  # noqa: E731
        kind = lambda handle: "dir" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"  # noqa: E731
        monkeypatch.setattr(os, "fsync", lambda h: (steps.append(f"fsync {kind(h)} {recorded()}"), real_fsync(h)))
        monkeypatch.setattr(os, "replace", lambda a, b: (steps.append(f"rename {recorded()}"), real_replace(a, b)))
        collection.snapshot()
    assert steps[:3] == ["fsync file 0", "rename 0", "fsync dir 0"]


def test_a_crash_between_commit_and_index_loses_nothing(tmp_path, monkeypatch):
    """What was committed and never reached the index is replayed from the log."""
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("a", vectors(1)[0])])
        collection.snapshot()
        # the crash: the index never hears of it
        monkeypatch.setattr(collection._index, "apply", lambda seq, *_: setattr(collection._index, "seq", seq))
        collection.upsert([Item("b", vectors(1, 1)[0])])
        assert [m.id for m in collection.search(vectors(1, 1)[0], 2)] == ["a"]
    with open_store(str(tmp_path)) as store:
        assert [m.id for m in store.get("c").search(vectors(1, 1)[0], 2)] == ["b", "a"]


def test_a_stale_index_never_returns_what_was_deleted(store):
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item(f"i{i}", v) for i, v in enumerate(vectors(40))])
    original = collection._index.apply  # an index that hears of no deletion
    collection._index.apply = lambda seq, died, came, vectors: original(seq, died[:0], came, vectors)
    collection.delete([f"i{i}" for i in range(0, 40, 2)])
    found = collection.search(vectors(1)[0], 20)
    assert len(found) == 20
    assert {int(match.id[1:]) % 2 for match in found} == {1}


def test_stray_files_are_moved_to_lost_and_found(tmp_path):
    filled(tmp_path)
    folder = next(path for path in (tmp_path / "collections").iterdir() if path.is_dir())
    (folder / "index-77.faiss.part").write_bytes(b"half")
    (tmp_path / "collections" / "0123.sqlite").write_bytes(b"of a create that was cut short")
    with open_store(str(tmp_path)) as store:
        store.get("c")
    assert sorted(path.name.split("-", 1)[-1] for path in (tmp_path / "lost+found").iterdir()) == [
        "0123.sqlite",
        "index-77.faiss.part",
    ]


# ---- refusals


def test_a_second_writer_is_refused_and_a_reader_sees_what_is_committed(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("a", vectors(1)[0])])
        with pytest.raises(StoreLocked, match="in this process or another"):
            open_store(str(tmp_path))
        with open_store(str(tmp_path), read_only=True) as reader:
            seen = reader.get("c")
            assert [m.id for m in seen.search(vectors(1)[0], 9)] == ["a"]
            collection.upsert([Item("b", vectors(1, 1)[0])])
            collection.delete(["a"])
            assert [m.id for m in seen.search(vectors(1)[0], 9)] == ["b"]
            for i in range(4):  # the reader's place falls out of the trimmed log
                collection.upsert([Item(f"x{i}", vectors(1, i)[0])])
                collection.snapshot()
            assert {m.id for m in seen.search(vectors(1)[0], 9)} == {"b", "x0", "x1", "x2", "x3"}
            with pytest.raises(StoreReadOnly):
                seen.upsert([Item("z", vectors(1)[0])])
            with pytest.raises(StoreReadOnly):
                reader.create("d", CollectionSpec(DIM))


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        (Item("", np.ones(DIM)), "Item id"),
        (Item("a/b", np.ones(DIM)), "Item id"),
        (Item("..", np.ones(DIM)), "Item id"),
        (Item("a", np.ones(DIM + 1)), r"takes \(8,\)"),
        (Item("a", np.full(DIM, np.nan)), "NaN"),
        (Item("a", np.zeros(DIM)), "zero"),
        (Item("a", np.array(["x"] * DIM)), "no list of numbers"),
        (Item("a", np.ones(DIM), {"x": float("nan")}), "not JSON"),
        (Item("a", np.ones(DIM), {"x": object()}), "not JSON"),
    ],
)
def test_a_bad_item_is_refused_with_the_whole_request(store, item, sentence):
    collection = store.create("c", CollectionSpec(DIM))
    with pytest.raises(InvalidRequest, match=sentence):
        collection.upsert([Item("good", vectors(1)[0]), item])
    assert collection.count() == 0


def test_names_are_checked_and_explained(store):
    store.create("photos", CollectionSpec(DIM))
    with pytest.raises(CollectionExists, match="photos"):
        store.create("photos", CollectionSpec(DIM))
    with pytest.raises(CollectionNotFound, match="there are photos"):
        store.get("fotos")
    for name in ("", "a b", "..", "x" * 129):
        with pytest.raises(InvalidRequest):
            store.create(name, CollectionSpec(DIM))
    for spec in ({"dim": 0}, {"dim": 4, "metric": "manhattan"}):
        with pytest.raises(InvalidRequest):
            CollectionSpec(**spec)


def test_vectors_of_another_encoder_are_refused_with_the_way_on(store):
    class Embedder:
        name, embed_dim, fingerprint = "mine", DIM, "f" * 32

    collection = store.create("c", CollectionSpec.of(Embedder()))
    collection.check(Embedder())
    other = Embedder()
    other.fingerprint = "e" * 32
    with pytest.raises(FingerprintMismatch, match="nnclr store reembed"):
        collection.check(other)


def test_dropping_removes_the_files_and_frees_the_name(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("a", vectors(1)[0])])
        store.drop("c")
        assert list((tmp_path / "collections").iterdir()) == []
        assert store.create("c", CollectionSpec(DIM)).count() == 0


def test_a_store_of_a_later_version_is_refused(tmp_path):
    open_store(str(tmp_path)).close()
    connection = connect(tmp_path / "catalog.sqlite")
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    with pytest.raises(StoreTooNew, match="later version"):
        open_store(str(tmp_path))


def test_a_full_disk_refuses_the_write_and_keeps_reading(store):
    """A real SQLITE_FULL: the file may not grow."""
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert([Item("a", vectors(1)[0])])
    pages = collection._connection.execute("PRAGMA page_count").fetchone()[0]
    collection._writer.exclusively(
        lambda connection: connection.execute(f"PRAGMA max_page_count = {pages + 2}").fetchone()
    )
    big = [Item(f"b{i}", v, {"x": "y" * 2000}) for i, v in enumerate(vectors(200))]
    with pytest.raises(DiskFull, match="nothing was written"):
        collection.upsert(big)
    assert [m.id for m in collection.search(vectors(1)[0], 5)] == ["a"]
    collection._writer.exclusively(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchone())
    collection.upsert(big)
    assert collection.count() == 201


def test_verify_finds_a_vector_that_changed_on_the_disk(tmp_path):
    filled(tmp_path)
    path = next((tmp_path / "collections").glob("*.sqlite"))
    connection = connect(path)
    blob = connection.execute("SELECT vector FROM vectors JOIN items USING (rid) WHERE id = 'i7'").fetchone()[0]
    connection.execute(
        "UPDATE vectors SET vector = ? WHERE rid = (SELECT rid FROM items WHERE id = 'i7')", [b"\0" * 4 + blob[4:]]
    )
    connection.close()
    with open_store(str(tmp_path)) as store:
        report = store.get("c").verify()
    assert report.damaged == ("i7",)
    assert not report.ok


def test_the_files_have_the_promised_settings(tmp_path):
    with open_store(str(tmp_path)) as store:
        connection = store.create("c", CollectionSpec(DIM))._connection
        settings = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "page_size", "foreign_keys")
        }
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT rid FROM items WHERE json_extract(metadata, '$.\"label\"') = 'x'"
        ).fetchall()
    assert settings == {"journal_mode": "wal", "synchronous": 2, "page_size": 16384, "foreign_keys": 1}
    assert "USING INDEX by_0" in json.dumps(plan)


def test_bulk_inserts_beyond_the_delta_stay_exact(store):
    n = SMALLEST_DELTA + 500
    made = np.random.default_rng(0).normal(size=(n, DIM)).astype(np.float32)
    collection = store.create("c", replace(CollectionSpec(DIM), metric="dot"))
    for start in range(0, n, 1000):
        collection.upsert([Item(f"i{i}", made[i]) for i in range(start, min(n, start + 1000))])
    query = made[17]
    assert [m.id for m in collection.search(query, 20)] == [f"i{i}" for i in np.argsort(-(made @ query))[:20]]
