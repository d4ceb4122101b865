"""Every kind of index, in both precisions and all metrics, with raw and transformed vectors, against numpy."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from store.exhaustive import nearest, scores, unit
from waiting import until

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import failpoints
from nnclr_hub.store.base import CollectionSpec, Item, SearchOptions
from nnclr_hub.store.index_kinds import HNSW, INDEX_KINDS, Hnsw, choose_kind
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.vector_transform import VectorTransform

ROWS, DIM, K = 3000, 24, 10
# a few thousand rows are enough for a trained index
SMALL = StoreSettings(memory=1 << 30, flat_below=1000, min_recent=300, max_recent=600)
Rows = dict[str, np.ndarray]
FILTERS: list[tuple[dict | None, Callable[[str], bool]]] = [
    (None, lambda id: True),
    ({"must": [{"key": "half", "match": 1}]}, lambda id: int(id[1:]) % 2 == 1),
    ({"must": [{"key": "rare", "match": 3}]}, lambda id: int(id[1:]) % 50 == 3),
]


def clustered(n: int, seed: int) -> np.ndarray:
    """(n, DIM) float32 in 60 clusters with a common direction, as image encoders give."""
    centers = 1 + np.random.default_rng(7).normal(size=(60, DIM))
    rng = np.random.default_rng(seed)
    return (centers[rng.integers(0, 60, n)] + 0.6 * rng.normal(size=(n, DIM))).astype(np.float32)


def without_clusters(n: int, seed: int) -> np.ndarray:
    """(n, 128) float32, too much for 16 bytes of code."""
    return np.random.default_rng(seed).normal(size=(n, 128)).astype(np.float32)


QUERIES = clustered(30, 2)


def named(vectors: np.ndarray, first: int = 0) -> Rows:
    return {f"i{first + n}": row for n, row in enumerate(vectors)}


def items(rows: Rows) -> list[Item]:
    return [Item(id, row, {"half": int(id[1:]) % 2, "rare": int(id[1:]) % 50}) for id, row in rows.items()]


def fitted_on(rows: Rows, kind: str) -> VectorTransform:
    return VectorTransform.fit(np.stack(list(rows.values())), kind)


@dataclass
class Expected:
    """What searches of a collection must find: ids, scores and vectors, to a tolerance and with a least recall."""

    spec: CollectionSpec
    tolerance: float
    least: float

    def kept(self, rows: Rows) -> Rows:
        """Return vectors as the collection stores them."""
        found = {id: unit(row) if self.spec.metric == "cosine" else row for id, row in rows.items()}
        return {
            id: row.astype("f2" if self.spec.precision == "f16" else "f4").astype("f4") for id, row in found.items()
        }

    def agrees(self, collection, rows: Rows, transform: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Compare exact and approximate searches, alone and in a batch, with numpy."""
        kept = self.kept(rows)
        ids, moved = list(kept), transform(np.stack(list(kept.values())))
        every = np.stack([scores(self.spec.metric, moved, query) for query in transform(QUERIES)])
        position = {id: n for n, id in enumerate(ids)}
        for where, passes in FILTERS:
            allowed = np.where([passes(id) for id in ids], every, -np.inf)
            count = min(K, sum(map(passes, ids)))
            best = np.sort(allowed, axis=1)[:, -count]
            for exact in (True, False):
                hits, found = 0, collection.search_each(QUERIES, K, SearchOptions(where, exact, with_vector=True))
                if not exact and where is None:
                    found[:5] = [collection.search(query, K, with_vector=True) for query in QUERIES[:5]]
                for matches, row, least in zip(found, allowed, best, strict=True):
                    if len(matches) != count or any(match.id not in kept for match in matches):
                        return False
                    got = np.array([match.score for match in matches])
                    if not np.allclose(got, [row[position[match.id]] for match in matches], atol=self.tolerance):
                        return False
                    if not all(np.allclose(match.vector, kept[match.id], atol=1e-6) for match in matches):
                        return False
                    hits += int((got >= least - self.tolerance).sum())
                if hits < (1.0 if exact else self.least) * count * len(QUERIES):
                    return False
        return True


class Added(Hnsw):
    """A kind that is added by one object: it is built, saved and loaded by its name."""

    name = "added"


@pytest.mark.parametrize(
    ("kind", "precision", "metric", "vectors"),
    [
        *(("flat", "f32", "dot", "raw"), ("flat", "f16", "l2", "raw"), ("flat", "f32", "cosine", "center")),
        *(("hnsw", "f32", "l2", "raw"), ("hnsw", "f16", "cosine", "half_whiten")),
        *(("ivf", "f32", "dot", "raw"), ("ivf", "f16", "l2", "raw")),
        *(("ivf_sq8", "f32", "l2", "raw"), ("ivf_sq8", "f16", "cosine", "whiten")),
        *(("ivf_pq", "f32", "cosine", "whiten"), ("ivf_pq", "f16", "dot", "raw")),
        ("added", "f32", "cosine", "raw"),
    ],
)
def test_every_kind_finds_the_nearest(tmp_path, kind, precision, metric, vectors, monkeypatch):
    """After growth, replacement, deletion, compaction, another fit and another start."""
    monkeypatch.setitem(INDEX_KINDS, "added", Added(links={"f32": 64, "f16": 32}))
    spec = CollectionSpec(DIM, metric, index=kind, precision=precision, indexed=("rare",), vectors=vectors)
    wanted = Expected(
        spec, 1e-4 if precision == "f32" else 5e-3, 0.9 if (kind, vectors) == ("ivf_pq", "whiten") else 0.97
    )

    def fitted(rows: Rows) -> Callable[[np.ndarray], np.ndarray]:
        return (lambda given: given) if vectors == "raw" else fitted_on(wanted.kept(rows), vectors)

    rows = named(clustered(ROWS // 2, 1))
    with EmbeddedStore(tmp_path, settings=SMALL) as store:
        collection = store.create("c", spec)
        for start in range(0, len(rows), 500):
            collection.upsert(items(rows)[start : start + 500])
        collection.compact()
        assert collection.info().index == kind
        before = fitted(rows)
        assert wanted.agrees(collection, rows, before)
        some = named(clustered(200, 3), 30) | named(clustered(50, 4), len(rows))
        collection.upsert(items(some))
        rows |= some
        gone = list(rows)[::9]
        assert collection.delete(gone) == len(gone)
        rows = {id: row for id, row in rows.items() if id not in set(gone)}
        assert wanted.agrees(collection, rows, before)
        assert collection.verify().ok
        collection.compact()
        after = fitted(rows)
        assert wanted.agrees(collection, rows, after)
        if vectors != "raw":
            assert not replace(wanted, tolerance=1e-6).agrees(collection, rows, before)
        report = collection.verify()
        assert report.ok
        assert report.recall >= wanted.least
        found = collection.search_each(QUERIES, K)
    with EmbeddedStore(tmp_path, settings=SMALL) as store:  # from the snapshot, and on from there
        collection = store.get("c")
        assert collection.info().index == kind
        assert collection.search_each(QUERIES, K) == found
        assert wanted.agrees(collection, rows, after)
        kept = wanted.kept(rows)
        assert all(np.allclose(item.vector, kept[item.id], atol=1e-6) for item in collection.get(list(rows)))
        assert collection.count() == len(rows)


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
        collection.upsert(items(named(vectors)))
        collection.compact()
        info, real = collection.info(), 0.0
        for query, matches in zip(queries, collection.search_each(queries, K), strict=True):
            truth = {id for id, _ in nearest("l2", named(vectors), query)[:K]}
            real += len(truth & {match.id for match in matches}) / (K * len(queries))
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
        assert collection.update_metadata({"n": 1}, where={"must_not": [{"ids": []}]}) == collection.count()
        go.set()
        thread.join()
        collection.compact()
        assert collection.info().index == "hnsw"
        built.clear()
        assert collection.update_metadata({"n": 2}, where={"must_not": [{"ids": []}]}) == ROWS
        collection.compact()
        assert not built
        assert collection.count({"must": [{"key": "n", "match": 2}]}) == ROWS


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_a_bulk_load_is_searched_through_an_inverted_file_that_grows_with_it(tmp_path, metric):
    """Its lists are learned from the first rows. Searches find nearly everything until a graph is built."""
    sizes = {"flat_below": 300, "coarse_from": 300, "min_recent": 50, "max_recent": 100, "points_per_list": 4}
    settings = replace(SMALL, **sizes, idle_seconds=3600.0)
    vectors = clustered(ROWS, 1)
    vectors[:600] = vectors[0] + 0.05 * vectors[:600]  # as in a first folder of similar images, unlike the next ones
    with EmbeddedStore(tmp_path, settings=settings) as store:
        collection = store.create("c", CollectionSpec(DIM, metric))
        for start in range(0, ROWS, 100):
            collection.upsert(items(named(vectors[start : start + 100], start)))
            if start == 500:
                until(lambda: collection.info().index == "ivf_sq8")
        info = collection.info()
        assert info.index == "ivf_sq8"
        assert info.state.startswith("building the hnsw index")
        found = 0
        for query in QUERIES:
            truth = {id for id, _ in nearest(metric, named(vectors), query)[:K]}
            found += len(truth & {match.id for match in collection.search(query, K)})
        assert found >= 0.97 * K * len(QUERIES)
        assert abs(info.recall_estimate - found / (K * len(QUERIES))) < 0.03
        collection.compact()
        assert (collection.info().index, collection.info().state) == ("hnsw", "ready")


# ------------------------------------------------------------------------------ transforms of growing collections


@pytest.mark.parametrize("vectors", ["center", "half_whiten"])
def test_the_transform_is_fitted_as_the_collection_grows_and_survives_a_start(tmp_path, vectors):
    """With 256 items, twice as many as before, and a tenth more when nothing is written; in the background."""
    agrees = Expected(CollectionSpec(DIM), 1e-4, 0.97).agrees
    rows = named(clustered(200, 1))
    raw = VectorTransform.fit(QUERIES, "raw")
    with EmbeddedStore(tmp_path) as store:
        collection = store.create("c", CollectionSpec(DIM, vectors=vectors))
        collection.upsert(items(rows))
        collection.compact()
        assert agrees(collection, rows, raw)
        for n in (300, 600, 800):
            more = named(clustered(n - len(rows), n), len(rows))
            collection.upsert(items(more))
            rows |= more
            fitted = fitted_on(rows, vectors)
            until(partial(agrees, collection, dict(rows), fitted))
        more = named(clustered(20, 7), len(rows))
        collection.upsert(items(more))
        rows |= more
        assert agrees(collection, rows, fitted)
    with EmbeddedStore(tmp_path) as store:  # saved, although so few changes are not worth a snapshot
        assert agrees(store.get("c"), rows, fitted)
        with EmbeddedStore(tmp_path, read_only=True) as reader:
            assert agrees(reader.get("c"), rows, fitted)
    for file in (tmp_path / "collections").glob("*/index-*.faiss"):
        file.unlink()
    with EmbeddedStore(tmp_path) as store:  # without its files, on all items
        assert agrees(store.get("c"), rows, fitted_on(rows, vectors))


def test_replaced_rows_leave_the_index_while_writes_continue(tmp_path):
    """Also of a small collection, whose index is flat: they take memory, and every search compares with them."""
    rows = named(clustered(100, 1))
    with EmbeddedStore(tmp_path, settings=StoreSettings(min_recent=500, idle_seconds=60)) as store:
        collection = store.create("c", CollectionSpec(DIM))
        for _ in range(40):
            collection.upsert(items(rows))
        until(lambda: collection.statistics().index_bytes < 2000 * DIM * 4)
        assert collection.search(rows["i7"], 1)[0].id == "i7"


# ------------------------------------------------------------------------------ the transform alone


def test_centered_vectors_have_no_common_direction():
    vectors = unit(clustered(400, 0))
    centered = VectorTransform.fit(vectors, "center")(vectors)
    assert centered == pytest.approx(unit(vectors - vectors.mean(axis=0)), abs=1e-5)


@pytest.mark.parametrize("kind", ["half_whiten", "whiten"])
def test_fewer_vectors_than_dimensions_stay_finite(kind):
    few = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    found = VectorTransform.fit(few, kind)(np.vstack([few, -few, few[:1] * 7]))
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(found[-1], abs=1e-5), "the length of a vector does not count"
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("rows", "kind"), [(3, "sphere"), (0, "whiten")])
def test_impossible_fits_are_refused(rows, kind):
    with pytest.raises(InvalidRequest):
        VectorTransform.fit(np.ones((rows, 4), np.float32), kind)
