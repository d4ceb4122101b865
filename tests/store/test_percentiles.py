"""Percentiles of scores, against all pairs of the collection by numpy."""

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Collection, CollectionSpec, Item, SearchOptions
from nnclr_hub.store.embedded import collection as collections
from nnclr_hub.store.items import percent_text
from nnclr_hub.store.queries import best_per_group
from nnclr_hub.store.vector_transform import VectorTransform

DIM = 16
EXACT, SAMPLED = 60, 400  # items: all pairs are compared, or 5,000 of 79,800
TOLERANCE, ONE_PAIR = 0.03, 1.01 / 1770  # whose score is that of a match up to rounding


def made(count: int, seed: int = 0) -> np.ndarray:
    """Vectors of two classes, one denser than the other, in the order of their classes; (count, DIM)."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, DIM)) + 1
    rows[: count // 3] = 0.3 * rows[: count // 3] + 2 * np.eye(DIM)[0]
    return rows.astype(np.float32)


def items(vectors: np.ndarray, first: int = 0) -> list[Item]:
    return [Item(f"i{first + n:04}", row) for n, row in enumerate(vectors)]


def share_below(scores: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """Return the share of all pairs that score lower, by their definition."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    score = {
        "cosine": lambda a, b: float(unit[a] @ unit[b]),
        "dot": lambda a, b: float(vectors[a] @ vectors[b]),
        "l2": lambda a, b: -float(np.linalg.norm(vectors[a] - vectors[b])),
    }[metric]
    pairs = np.array([score(a, b) for a, b in combinations(range(len(vectors)), 2)])
    return np.array([(pairs < one - 1e-5).mean() for one in scores])


@pytest.fixture
def reads(monkeypatch):
    """The collections whose vectors were read, once for each time."""
    found = []
    for kind in Collection.__subclasses__():

        def counting(self, read=kind.random_vectors):
            found.append(self)
            return read(self)

        monkeypatch.setattr(kind, "random_vectors", counting)
    return found


@pytest.fixture(params=["folder", "milvus"])
def store(request, tmp_path):
    if request.param == "milvus":
        pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    with open_store(str(tmp_path / ("x.milvus.db" if request.param == "milvus" else "store"))) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    with open_store(str(tmp_path / "store")) as opened:
        yield opened


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize(("count", "tolerance"), [(EXACT, ONE_PAIR), (SAMPLED, TOLERANCE)])
def test_a_percentile_is_the_share_of_pairs_that_score_lower(store, metric, count, tolerance):
    vectors = made(count)
    collection = store.create("c", CollectionSpec(DIM, metric))
    collection.upsert(items(vectors))
    matches = collection.search(vectors[5] + 0.1, k=count, with_percentile=True)
    scores = np.array([match.score for match in matches])
    found = np.array([match.percentile for match in matches])
    assert np.abs(found - share_below(scores, vectors, metric)).max() <= tolerance
    assert (np.diff(found) <= 0).all()
    assert found[0] > 0.8
    assert collection.percentiles(scores.tolist()) == found.tolist()
    assert collection.percentiles([1e9, -1e9]) == [1.0, 0.0]
    assert collection.search(vectors[5], k=1)[0].percentile is None


def test_the_order_of_the_items_does_not_matter(folder):
    vectors = made(SAMPLED)
    mixed = vectors[np.random.default_rng(1).permutation(SAMPLED)]
    scores = np.linspace(-1, 1, 21).tolist()
    for name, rows in (("a", vectors), ("b", mixed)):
        folder.create(name, CollectionSpec(DIM)).upsert(items(rows))
    one, other = (np.array(folder.get(name).percentiles(scores)) for name in "ab")
    assert np.abs(one - other).max() < TOLERANCE


def test_few_items_have_no_percentiles(store):
    vectors = made(10)
    collection = store.create("c", CollectionSpec(DIM))
    assert collection.percentiles([0.5]) is None
    collection.upsert(items(vectors[:9]))
    assert [match.percentile for match in collection.search(vectors[0], k=3, with_percentile=True)] == [None] * 3
    collection.upsert(items(vectors[9:], 9))
    assert collection.percentiles([0.5]) == pytest.approx(share_below(np.array([0.5]), vectors, "cosine"))
    assert collection.search(vectors[0], where={"must": [{"key": "label", "exists": True}]}, with_percentile=True) == []


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize(("first", "times"), [(1, 201), (100, 20)], ids=["one image 200 times", "each image 20 times"])
def test_copies_do_not_lower_percentiles(folder, metric, first, times):
    """Copies of an image differ a little, by the rounding of float32 if they are exact."""
    vectors = made(100) + (50 if metric == "l2" else 0)  # distances do not depend on an offset
    jitter = 1 + 1e-4 * np.random.default_rng(1).normal(size=(times - 1, first, DIM))
    copies = (vectors[:first] * jitter).reshape(-1, DIM).astype(np.float32)
    collection = folder.create("c", CollectionSpec(DIM, metric))
    collection.upsert(items(vectors))
    scores = [match.score for match in collection.search(vectors[-1], k=60)[1:]]
    before = np.array(collection.percentiles(scores))
    collection.upsert(items(copies, len(vectors)))
    assert np.abs(collection.percentiles(scores) - before).max() < TOLERANCE


def test_one_image_with_many_copies_has_no_percentiles(folder):
    collection = folder.create("c", CollectionSpec(300))
    vector = np.random.default_rng(0).normal(size=300).astype(np.float32)
    collection.upsert(items(np.repeat(vector[None], EXACT, axis=0)))
    assert {match.percentile for match in collection.search(vector, with_percentile=True)} == {None}


def test_pairs_are_sampled_again_when_a_tenth_of_the_items_changed(store):
    vectors, scores = made(100), [0.2, 0.5, 0.8]
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert(items(vectors[:50]))
    before = collection.percentiles(scores)
    collection.upsert(items(vectors[50:52], 50))
    assert collection.percentiles(scores) == before

    collection.upsert(items(vectors[52:], 52))
    grown = collection.percentiles(scores)
    assert grown == pytest.approx(share_below(np.array(scores), vectors, "cosine"))
    collection.delete([item.id for item in items(vectors)[:60]])
    assert collection.percentiles(scores) == pytest.approx(share_below(np.array(scores), vectors[60:], "cosine"))
    collection.upsert(items(vectors[:40], 60))  # the same ids with other vectors
    assert collection.percentiles(scores) == pytest.approx(share_below(np.array(scores), vectors[:40], "cosine"))


def test_pairs_are_sampled_again_when_the_transform_changed(folder):
    vectors, scores = made(256), [0.2, 0.5, 0.8]
    collection = folder.create("c", CollectionSpec(DIM, vectors="whiten"))
    collection.upsert(items(vectors[:-1]))
    raw = np.array(collection.percentiles(scores))
    assert np.abs(raw - share_below(np.array(scores), vectors, "cosine")).max() < TOLERANCE
    collection.upsert(items(vectors[-1:], 255))
    collection.compact()  # fits the transform
    white = share_below(np.array(scores), VectorTransform.fit(vectors, "whiten")(vectors), "cosine")
    found = np.array(collection.percentiles(scores))
    assert np.abs(found - white).max() < TOLERANCE
    assert np.abs(found - raw).max() > 5 * TOLERANCE


def test_a_reader_follows_another_process(folder, tmp_path):
    vectors, scores = made(100), [0.2, 0.5, 0.8]
    folder.create("c", CollectionSpec(DIM)).upsert(items(vectors[:30]))
    with open_store(str(tmp_path / "store"), read_only=True) as reader:
        collection = reader.get("c")
        assert collection.percentiles(scores) == pytest.approx(share_below(np.array(scores), vectors[:30], "cosine"))
        folder.get("c").upsert(items(vectors[30:], 30))
        [match] = collection.search(vectors[0], k=1, with_percentile=True)
        assert match.percentile == 1.0
        assert collection.percentiles(scores) == pytest.approx(share_below(np.array(scores), vectors, "cosine"))


def test_changes_of_metadata_do_not_renew_the_sample(store):
    vectors, scores = made(105), [0.2, 0.5, 0.8]
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert(items(vectors[:100]))
    before = collection.percentiles(scores)
    collection.upsert(items(vectors[100:], 100))  # less than a tenth, but another sample would differ
    collection.update_metadata({"label": "cat"}, where={})
    collection.update_each({item.id: {"label": "dog"} for item in items(vectors[:50])})
    assert collection.percentiles(scores) == before


def test_the_best_of_groups_have_percentiles_of_one_sample(store, reads, monkeypatch):
    vectors = made(EXACT)
    collection = store.create("c", CollectionSpec(DIM, indexed=("n",)))
    collection.upsert([Item(item.id, item.vector, {"n": n % 3}) for n, item in enumerate(items(vectors))])
    options, nearest = [], type(collection).nearest

    def listening(self, vectors, k, given):
        options.append(given)
        return nearest(self, vectors, k, given)

    monkeypatch.setattr(type(collection), "nearest", listening)
    found = best_per_group(collection, vectors[0], "n", 3, SearchOptions(with_percentile=True))
    scores = [match.score for match in found]
    assert [match.percentile for match in found] == collection.percentiles(scores)
    assert [match.percentile for match in best_per_group(collection, vectors[0], "n", 3)] == [None] * 3
    assert not any(one.with_percentile for one in options)
    assert reads == [collection]


def test_a_search_runs_again_if_the_transform_was_fitted_in_between(folder, monkeypatch):
    """Else its scores, of the vectors as they are, would be compared with those of whitened pairs."""
    vectors = made(256)
    collection = folder.create("c", CollectionSpec(DIM, vectors="whiten"))
    collection.upsert(items(vectors[:-1]))
    collection.upsert(items(vectors[-1:], 255))
    run, fitted = collections.search, []

    def fitting(*given):
        found = run(*given)
        if not fitted:
            fitted.append(True)
            collection.compact()  # fits the transform
        return found

    monkeypatch.setattr(collections, "search", fitting)
    found = collection.search(vectors[5], k=256, with_percentile=True)
    white = VectorTransform.fit(vectors, "whiten")(vectors)
    scores = np.array([match.score for match in found])
    shares = np.array([match.percentile for match in found])
    assert np.abs(shares - share_below(scores, white, "cosine")).max() < TOLERANCE
    assert scores == pytest.approx([match.score for match in collection.search(vectors[5], k=256)])


def test_threads_sample_once_while_others_write(folder, reads):
    vectors = made(SAMPLED)
    collection = folder.create("c", CollectionSpec(DIM))
    collection.upsert(items(vectors))

    def search(i: int) -> list[float]:
        if i % 4 == 0:
            collection.upsert(items(vectors[i : i + 1], i))
        return [match.percentile for match in collection.search(vectors[7], k=5, with_percentile=True)]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(search, range(32)))
    assert len(set(map(tuple, answers))) == 1
    assert reads == [collection]


@pytest.mark.parametrize("scores", [0.5, ["high"], [float("nan")], [[0.5]], None])
def test_only_numbers_have_percentiles(folder, scores):
    collection = folder.create("c", CollectionSpec(DIM))
    with pytest.raises(InvalidRequest, match="finite numbers"):
        collection.percentiles(scores)


def test_people_see_no_more_digits_than_the_sample_has():
    shares = [None, 0.0, 0.4821, 0.999, 0.9992, 1.0]
    assert list(map(percent_text, shares)) == ["", "0.0%", "48.2%", "99.9%", ">99.9%", ">99.9%"]
