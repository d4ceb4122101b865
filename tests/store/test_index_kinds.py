"""Every kind of index, in both precisions and all metrics, against numpy."""

import numpy as np
import pytest

from nnclr_hub.store import open_store
from nnclr_hub.store.ann import fold
from nnclr_hub.store.ann import kinds as index_kinds
from nnclr_hub.store.ann.kinds import LIST_BYTES, choose_kind, graph_bytes
from nnclr_hub.store.base import CollectionSpec, Item

ROWS, DIM, K = 6000, 24, 10


@pytest.fixture(autouse=True)
def _small_collections_grow_up(monkeypatch):
    """A few thousand rows are enough for a trained index."""
    for module in (fold, index_kinds):
        monkeypatch.setattr(module, "FLAT_BELOW", 2000)
    monkeypatch.setattr(fold, "SMALLEST_DELTA", 500)
    monkeypatch.setattr(fold, "LARGEST_DELTA", 1000)


def clustered(n: int, seed: int) -> np.ndarray:
    """(n, DIM) float32 in 60 clusters, as image encoders give."""
    centers = np.random.default_rng(7).normal(size=(60, DIM))
    rng = np.random.default_rng(seed)
    return (centers[rng.integers(0, 60, n)] + 0.6 * rng.normal(size=(n, DIM))).astype(np.float32)


def truly_nearest(vectors: dict[str, np.ndarray], queries: np.ndarray, metric: str) -> list[set[str]]:
    names, rows = list(vectors), np.stack(list(vectors.values())).astype(np.float64)
    queries = queries.astype(np.float64)
    if metric == "cosine":
        rows, queries = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (rows, queries))
    scores = -np.linalg.norm(queries[:, None] - rows[None], axis=2) if metric == "l2" else queries @ rows.T
    return [{names[i] for i in row[:K]} for row in np.argsort(-scores, axis=1)]


def recall(found: list[list], truth: list[set[str]]) -> float:
    return float(np.mean([len({m.id for m in ms} & t) / K for ms, t in zip(found, truth, strict=True)]))


@pytest.mark.parametrize(
    ("kind", "precision", "metric"),
    [
        *((kind, "f32", metric) for kind in ("flat", "hnsw", "ivf", "ivf_pq") for metric in ("cosine", "l2", "dot")),
        ("flat", "f16", "l2"),
        ("hnsw", "f16", "cosine"),
        ("ivf", "f16", "l2"),
        ("ivf_pq", "f16", "dot"),
    ],
)
def test_every_kind_finds_the_nearest(tmp_path, kind, precision, metric):
    """After growth, deletion, replacement and compaction: unfiltered, filtered by many and by few, and exactly."""
    made = dict(zip((f"i{n}" for n in range(ROWS)), clustered(ROWS, 1), strict=True))
    about = {id: {"half": n % 2, "rare": n % 100} for n, id in enumerate(made)}
    queries = clustered(30, 2)
    spec = CollectionSpec(DIM, metric=metric, index=kind, precision=precision, indexed=("rare",))
    with open_store(str(tmp_path)) as store:
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
    with open_store(str(tmp_path)) as store:  # from the snapshot, and on from there
        collection = store.get("c")
        assert collection.info().index == kind
        assert recall(collection.search_batch(queries, K), truth) >= 0.98


def test_a_collection_grows_from_flat_to_a_graph_while_it_answers(tmp_path):
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        vectors = clustered(ROWS, 1)
        kinds = set()
        for start in range(0, ROWS, 250):
            collection.upsert([Item(f"i{i}", vectors[i]) for i in range(start, start + 250)])
            assert collection.search(vectors[start], 1)[0].id == f"i{start}"
            kinds.add(collection.info().index)
        collection.compact()
        assert kinds | {collection.info().index} == {"flat", "hnsw"}


def test_the_kind_goes_by_size_and_memory(monkeypatch):
    monkeypatch.setattr(index_kinds, "FLAT_BELOW", 50_000)
    spec = CollectionSpec(256)
    million = 1_000_000
    assert choose_kind(spec, 49_999, 1 << 40) == "flat"
    assert choose_kind(spec, million, 1 << 40) == "hnsw"
    assert choose_kind(spec, million, 2 * million * (1024 + graph_bytes(spec)) - 1) == "ivf"
    assert choose_kind(spec, million, 2 * million * (1024 + LIST_BYTES) - 1) == "ivf_pq"
    half = CollectionSpec(256, precision="f16")
    assert choose_kind(half, million, 2 * million * (512 + graph_bytes(half))) == "hnsw"
    assert choose_kind(CollectionSpec(256, index="ivf"), million, 1 << 40) == "ivf"
    assert choose_kind(CollectionSpec(256, index="hnsw"), 100, 1 << 40) == "flat"


def test_effort_travels_with_every_search(tmp_path):
    """faiss forgets an index's own efSearch beside a selector; the judged one, or the caller's, always goes along."""
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM, index="hnsw"))
        rng = np.random.default_rng(0)
        vectors = rng.normal(size=(ROWS, DIM)).astype(np.float32)  # without clusters: hard for a graph
        collection.upsert([Item(f"i{i}", vector, {"half": i % 2}) for i, vector in enumerate(vectors)])
        collection.compact()
        queries = rng.normal(size=(50, DIM)).astype(np.float32)
        made = {f"i{i}": vectors[i] for i in range(ROWS)}
        odd = {id: vector for i, (id, vector) in enumerate(made.items()) if i % 2}
        where = {"must": [{"key": "half", "match": 1}]}
        truth = truly_nearest(odd, queries, "cosine")
        assert recall(collection.search_batch(queries, K, where), truth) >= 0.97
        low = recall(collection.search_batch(queries, K, effort=1), truly_nearest(made, queries, "cosine"))
        high = recall(collection.search_batch(queries, K, effort=800), truly_nearest(made, queries, "cosine"))
        assert high > low
        assert high >= 0.99


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_copies_do_not_make_the_judging_too_easy(tmp_path, kind):
    """Ten copies of each vector: stored ones find their copies with no effort, new queries need more."""
    rng = np.random.default_rng(0)
    made = np.repeat(rng.normal(size=(600, DIM)), 10, axis=0).astype(np.float32)
    queries = rng.normal(size=(60, DIM)).astype(np.float32)
    with open_store(str(tmp_path)) as store:
        collection = store.create("c", CollectionSpec(DIM, "l2", index=kind))
        collection.upsert([Item(f"i{i}", vector) for i, vector in enumerate(made)])
        collection.compact()
        tenth = np.sort(-np.linalg.norm(queries[:, None] - made[None], axis=2), axis=1)[:, -K]
        found = collection.search_batch(queries, K)
        hits = [match.score >= worst - 1e-3 for ms, worst in zip(found, tenth, strict=True) for match in ms]
        assert len(hits) == K * len(queries)
        assert np.mean(hits) >= 0.95
        assert collection.verify().ok


def test_a_graph_with_more_links_than_are_made_today_grows_on_as_it_is(monkeypatch):
    """As one does that an earlier release has left behind."""
    spec = CollectionSpec(16, precision="f16", index="hnsw")
    rows = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    monkeypatch.setitem(index_kinds.LINKS, "f16", 24)
    main = index_kinds.build_main(spec, "hnsw", 2000, lambda: iter([rows[:2000]]))
    monkeypatch.setitem(index_kinds.LINKS, "f16", 16)
    grown = index_kinds.extended(main, spec, iter([rows[2000:]]), 1000)
    assert grown.index.hnsw.nb_neighbors(0) == 48
    found = grown.search(rows, 1, effort=128)[1][:, 0]
    assert (found == np.arange(3000)).mean() > 0.99
