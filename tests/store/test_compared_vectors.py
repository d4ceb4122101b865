"""Collections that compare centered or whitened vectors, against numpy on the vectors that were written."""

from functools import partial

import numpy as np
import pytest
from store.backups import contents
from waiting import until

from nnclr_hub import EmbeddedStore
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.vector_transform import VectorTransform, unit_length

ROWS, DIM, K = 1200, 24, 10
SMALL = StoreSettings(memory=1 << 30, flat_below=1000, min_recent=300, max_recent=600)
Rows = dict[str, np.ndarray]


def made(n: int, seed: int) -> np.ndarray:
    """Unit vectors (n, DIM) with a common direction and variances of many sizes, as image encoders return."""
    rng = np.random.default_rng(seed)
    rows = 3 + rng.normal(size=(n, DIM)) * np.geomspace(3, 0.1, DIM)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


QUERIES = made(20, 99)


def items(rows: Rows) -> list[Item]:
    return [Item(id, row, {"half": int(id[1:]) % 2}) for id, row in rows.items()]


def named(vectors: np.ndarray, first: int = 0) -> Rows:
    return {f"i{first + n}": row for n, row in enumerate(vectors)}


def fitted_on(rows: Rows, kind="whiten") -> VectorTransform:
    return VectorTransform.fit(np.stack(list(rows.values())), kind)


def agrees(collection, rows: Rows, transform, tolerance=1e-4, least=0.97) -> bool:
    """Compare exact, approximate and filtered searches with numpy: ids, scores, and the vectors of matches."""
    ids, vectors = list(rows), np.stack(list(rows.values()))
    scores = transform(QUERIES) @ transform(vectors).T
    odd = np.array([int(id[1:]) % 2 == 1 for id in ids])
    for where, allowed in ((None, np.ones(len(ids), bool)), ({"must": [{"key": "half", "match": 1}]}, odd)):
        for exact in (True, False):
            hits = 0
            found = collection.search_batch(QUERIES, K, where, exact=exact, with_vector=True)
            for matches, row in zip(found, np.where(allowed, scores, -np.inf), strict=True):
                best = np.sort(row)[::-1][:K]
                if len(matches) != K or any(match.id not in rows for match in matches):
                    return False
                got = np.array([match.score for match in matches])
                if not np.allclose(got, [row[ids.index(match.id)] for match in matches], atol=tolerance):
                    return False
                if any(match.vector.tobytes() != rows[match.id].tobytes() for match in matches):
                    return False
                hits += int((got >= best[-1] - tolerance).sum())
            if hits < (1.0 if exact else least) * K * len(QUERIES):
                return False
    return True


@pytest.mark.parametrize(
    ("index", "vectors", "precision"),
    [
        ("flat", "center", "f32"),
        ("hnsw", "half_whiten", "f16"),
        ("ivf_sq8", "whiten", "f32"),
        ("ivf_pq", "whiten", "f32"),
    ],
)
def test_every_kind_of_index_compares_transformed_vectors(tmp_path, index, vectors, precision):
    """After growth, edits, another fit and another start; what is read back are the vectors that were written."""
    rows = named(made(ROWS, 1))
    if precision == "f16":
        rows = {id: row.astype(np.float16).astype(np.float32) for id, row in rows.items()}
    how = {"tolerance": 1e-4 if precision == "f32" else 5e-3, "least": 0.9 if index == "ivf_pq" else 0.97}
    with EmbeddedStore(tmp_path, settings=SMALL) as store:
        collection = store.create("c", CollectionSpec(DIM, index=index, vectors=vectors, precision=precision))
        collection.upsert(items(rows))
        collection.compact()
        assert collection.info().index == index
        before = fitted_on(rows, vectors)
        assert agrees(collection, rows, before, **how)
        some = named(made(60, 2), 30) | named(made(50, 3), ROWS)
        if precision == "f16":
            some = {id: row.astype(np.float16).astype(np.float32) for id, row in some.items()}
        collection.upsert(items(some))
        collection.delete([f"i{n}" for n in range(20)])
        rows = {id: row for id, row in rows.items() if int(id[1:]) >= 20 and id not in some} | some
        assert agrees(collection, rows, before, **how)
        assert collection.verify().ok
        collection.compact()
        after = fitted_on(rows, vectors)
        assert agrees(collection, rows, after, **how)
        assert not agrees(collection, rows, before, tolerance=1e-6)
        assert collection.verify().ok
        scores = collection.search_batch(QUERIES, K)
    with EmbeddedStore(tmp_path, settings=SMALL) as store:
        collection = store.get("c")
        assert collection.search_batch(QUERIES, K) == scores
        assert agrees(collection, rows, after, **how)
        assert {id: row for id, (row, *_) in contents(collection).items()} == {i: v.tobytes() for i, v in rows.items()}


@pytest.mark.parametrize("vectors", ["center", "half_whiten"])
def test_the_transform_is_fitted_as_the_collection_grows_and_survives_a_start(tmp_path, vectors):
    """With 256 items, twice as many as before, and a tenth more when nothing is written; in the background."""
    rows = named(made(200, 1))
    raw = VectorTransform.fit(QUERIES, "raw")
    with EmbeddedStore(tmp_path) as store:
        collection = store.create("c", CollectionSpec(DIM, vectors=vectors))
        collection.upsert(items(rows))
        collection.compact()
        assert agrees(collection, rows, raw)
        for n in (300, 600, 800):
            more = named(made(n - len(rows), n), len(rows))
            collection.upsert(items(more))
            rows |= more
            fitted = fitted_on(rows, vectors)
            until(partial(agrees, collection, dict(rows), fitted))
        more = named(made(20, 7), len(rows))
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


# ------------------------------------------------------------------------------ the transform alone


def test_centered_vectors_have_no_common_direction():
    vectors = made(400, 0)
    centered = VectorTransform.fit(vectors, "center")(vectors)
    unit = unit_length(vectors)
    assert centered == pytest.approx(unit_length(unit - unit.mean(axis=0)), abs=1e-5)


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


def test_replaced_rows_leave_the_index_while_writes_continue(tmp_path):
    """Also of a small collection, whose index is flat: they take memory, and every search compares with them."""
    items = [Item(f"i{n}", vector) for n, vector in enumerate(np.random.default_rng(0).normal(size=(100, 16)))]
    with EmbeddedStore(tmp_path, settings=StoreSettings(min_recent=500, idle_seconds=60)) as store:
        collection = store.create("c", CollectionSpec(16))
        for _ in range(40):
            collection.upsert(items)
        until(lambda: collection.statistics().index_bytes < 2000 * 16 * 4)
        assert collection.search(items[7].vector, 1)[0].id == "i7"
