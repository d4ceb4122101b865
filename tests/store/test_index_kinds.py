"""Every kind of index, in both precisions and all metrics, against numpy."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from store.exhaustive import nearest
from waiting import until

from nnclr_hub import EmbeddedStore
from nnclr_hub.store import failpoints
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.index_kinds import HNSW, INDEX_KINDS, Hnsw, choose_kind
from nnclr_hub.store.settings import StoreSettings

ROWS, DIM, K = 3000, 24, 10
# a few thousand rows are enough for a trained index
SMALL = StoreSettings(memory=1 << 30, flat_below=1000, min_recent=300, max_recent=600)


def clustered(n: int, seed: int) -> np.ndarray:
    """(n, DIM) float32 in 60 clusters, as image encoders give."""
    centers = np.random.default_rng(7).normal(size=(60, DIM))
    rng = np.random.default_rng(seed)
    return (centers[rng.integers(0, 60, n)] + 0.6 * rng.normal(size=(n, DIM))).astype(np.float32)


def without_clusters(n: int, seed: int) -> np.ndarray:
    """(n, 128) float32, too much for 16 bytes of code."""
    return np.random.default_rng(seed).normal(size=(n, 128)).astype(np.float32)


def truly_nearest(vectors: dict[str, np.ndarray], queries: np.ndarray, metric: str) -> list[set[str]]:
    return [{id for id, _ in nearest(metric, vectors, query)[:K]} for query in queries]


def recall(found: list[list], truth: list[set[str]]) -> float:
    return float(np.mean([len({m.id for m in ms} & t) / K for ms, t in zip(found, truth, strict=True)]))


class Added(Hnsw):
    """A kind that is added by one object: it is built, saved and loaded by its name."""

    name = "added"


@pytest.mark.parametrize(
    ("kind", "precision", "metric"),
    [
        *(("flat", "f32", "dot"), ("flat", "f16", "l2"), ("hnsw", "f32", "l2"), ("hnsw", "f16", "cosine")),
        *(("ivf", "f32", "dot"), ("ivf", "f16", "l2"), ("ivf_sq8", "f32", "l2"), ("ivf_sq8", "f16", "cosine")),
        *(("ivf_pq", "f32", "cosine"), ("ivf_pq", "f16", "dot")),
        ("added", "f32", "cosine"),
    ],
)
def test_every_kind_finds_the_nearest(tmp_path, kind, precision, metric, monkeypatch):
    """After growth, deletion, replacement and compaction: unfiltered, filtered by many and by few, and exactly."""
    monkeypatch.setitem(INDEX_KINDS, "added", Added(links={"f32": 64, "f16": 32}))
    made = dict(zip((f"i{n}" for n in range(ROWS)), clustered(ROWS, 1), strict=True))
    about = {id: {"half": n % 2, "rare": n % 100} for n, id in enumerate(made)}
    queries = clustered(30, 2)
    spec = CollectionSpec(DIM, metric=metric, index=kind, precision=precision, indexed=("rare",))
    with EmbeddedStore(tmp_path, settings=SMALL) as store:
        collection = store.create("c", spec)
        ids = list(made)
        for start in range(0, ROWS, 500):
            collection.upsert([Item(id, made[id], about[id]) for id in ids[start : start + 500]])
        gone = ids[::9]
        collection.delete(gone)
        made = {id: vector for id, vector in made.items() if id not in set(gone)}
        fresh = clustered(300, 3)
        for id, vector in zip(list(made)[:300], fresh, strict=True):
            made[id] = vector
        collection.upsert([Item(id, made[id], about[id]) for id in list(made)[:300]])
        collection.compact()
        assert collection.info().index == kind
        truth = truly_nearest(made, queries, metric)
        assert recall(collection.search_batch(queries, K), truth) >= 0.98
        assert recall([collection.search(query, K) for query in queries], truth) >= 0.98
        assert recall(collection.search_batch(queries, K, exact=True), truth) >= 0.99  # f16 rounds
        for where, passes in (
            ({"must": [{"key": "half", "match": 1}]}, lambda id: about[id]["half"] == 1),
            ({"must": [{"key": "rare", "match": 3}]}, lambda id: about[id]["rare"] == 3),
        ):
            some = {id: vector for id, vector in made.items() if passes(id)}
            found = collection.search_batch(queries, K, where)
            assert all(len(matches) == K for matches in found)
            assert recall(found, truly_nearest(some, queries, metric)) >= 0.98
        report = collection.verify()
        assert report.ok
        assert report.recall >= 0.98
    with EmbeddedStore(tmp_path, settings=SMALL) as store:  # from the snapshot, and on from there
        collection = store.get("c")
        assert collection.info().index == kind
        assert recall(collection.search_batch(queries, K), truth) >= 0.98


def test_the_kind_depends_on_size_and_memory():
    settings = StoreSettings(memory=1 << 40)
    spec, half, million = CollectionSpec(256), CollectionSpec(256, precision="f16"), 1_000_000

    def chosen(index: str, rows: int, memory: int = 1 << 40, spec: CollectionSpec = spec) -> str:
        return choose_kind(index, spec, rows, replace(settings, memory=memory)).name

    assert chosen("auto", 49_999) == "flat"
    assert chosen("auto", million) == "hnsw"
    assert chosen("auto", million, 2 * million * HNSW.bytes_per_vector(spec) - 1) == "ivf_sq8"
    assert chosen("auto", million, 2 * million * INDEX_KINDS["ivf_sq8"].bytes_per_vector(spec) - 1) == "ivf_pq"
    # ten million vectors of 512 numbers on a machine with 24 GiB
    assert chosen("auto", 10 * million, 12 << 30, CollectionSpec(512)) == "ivf_sq8"
    assert chosen("auto", million, 2 * million * HNSW.bytes_per_vector(half), half) == "hnsw"
    assert chosen("ivf", million) == "ivf"
    assert chosen("hnsw", 100) == "flat"
    assert HNSW.bytes_per_vector(spec) == 1024 + 272
    assert HNSW.bytes_per_vector(half) == 512 + 144


@pytest.mark.parametrize(("made", "low"), [(clustered, False), (without_clusters, True)])
def test_the_recall_is_measured_and_a_low_one_is_reported(tmp_path, made, low):
    """Few bytes per vector suffice for clusters only; the estimate agrees with the recall of further queries."""
    vectors, queries = made(ROWS, 1), made(100, 2)
    with EmbeddedStore(tmp_path, settings=SMALL) as store:
        collection = store.create("c", CollectionSpec(vectors.shape[1], "l2", index="ivf_pq"))
        assert collection.info().recall_estimate == 1.0  # a flat index
        collection.upsert([Item(f"i{i}", vector) for i, vector in enumerate(vectors)])
        collection.compact()
        truth = truly_nearest({f"i{i}": vector for i, vector in enumerate(vectors)}, queries, "l2")
        real, info = recall(collection.search_batch(queries, K), truth), collection.info()
        assert abs(info.recall_estimate - real) < 0.06
        assert (real < 0.9) == low
        assert info.state.startswith("degraded") == low
        collection.snapshot()
    with EmbeddedStore(tmp_path, settings=SMALL) as store:
        assert store.get("c").info().recall_estimate == info.recall_estimate


def test_writes_wait_while_a_build_is_slower_than_they_are(tmp_path):
    """Otherwise all vectors would be in memory, whatever the limit. Edits of metadata neither wait nor build."""
    go, built, written = threading.Event(), [], []
    vectors, most = clustered(ROWS, 1), 2 * SMALL.max_recent

    def hold() -> None:
        built.append(1)
        assert go.wait(60)

    def write() -> None:
        for start in range(0, ROWS, 100):
            collection.upsert([Item(f"i{start + i}", row) for i, row in enumerate(vectors[start : start + 100])])
            written.append(start)

    with EmbeddedStore(tmp_path, settings=replace(SMALL, memory=1 << 18)) as store, failpoints.at("fold.built", hold):
        collection = store.create("c", CollectionSpec(DIM, index="hnsw"))
        thread = threading.Thread(target=write)
        thread.start()
        until(lambda: 100 * len(written) > most)
        thread.join(0.3)
        assert 100 * len(written) <= most + 100
        assert collection.search(vectors[most], 1)[0].id == f"i{most}"  # reads continue
        assert collection.update_metadata({"n": 1}, where={}) == collection.count()
        go.set()
        thread.join()
        collection.compact()
        assert collection.info().index == "hnsw"
        built.clear()
        assert collection.update_metadata({"n": 2}, where={}) == ROWS
        collection.compact()
        assert not built
        assert collection.count({"must": [{"key": "n", "match": 2}]}) == ROWS
