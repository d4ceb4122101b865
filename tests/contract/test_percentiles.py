"""Percentiles of scores, on every store, against all pairs of the collection by numpy."""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from contract.places import refused
from store.exhaustive import scores

from nnclr_hub.errors import StoreUnreachable
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Collection, CollectionSpec, Item, Match, SearchOptions
from nnclr_hub.store.items import percent_text
from nnclr_hub.store.percentiles import RandomScores, RandomVectors
from nnclr_hub.store.queries import best_per_group
from nnclr_hub.store.vector_transform import VectorTransform

DIM = 16
EXACT, SAMPLED = 60, 400  # items: all pairs are compared, or 5,000 of 79,800
TOLERANCE, ONE_PAIR = 0.03, 1.01 / 1770  # whose score is that of a match up to rounding
AT = [0.2, 0.5, 0.8]


def made(count: int) -> np.ndarray:
    """Vectors of two classes, one denser than the other, in the order of their classes; (count, DIM)."""
    rows = np.random.default_rng(0).normal(size=(count, DIM)) + 1
    rows[: count // 3] = 0.3 * rows[: count // 3] + 2 * np.eye(DIM)[0]
    return rows.astype(np.float32)


def items(vectors: np.ndarray, first: int = 0) -> list[Item]:
    return [Item(f"i{first + n:04}", row, {"n": n % 3}) for n, row in enumerate(vectors)]


def share_below(given, vectors: np.ndarray, metric: str = "cosine") -> np.ndarray:
    """Return the share of all pairs that score lower, by their definition."""
    pairs = np.stack([scores(metric, vectors, one) for one in vectors])[np.triu_indices(len(vectors), 1)]
    return np.array([(pairs < one - 1e-5).mean() for one in given])


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize(("count", "tolerance"), [(EXACT, ONE_PAIR), (SAMPLED, TOLERANCE)])
def test_a_percentile_is_the_share_of_pairs_that_score_lower(store, kind, metric, count, tolerance):
    vectors = made(count)
    collection = store.create("c", CollectionSpec(DIM, metric))
    collection.upsert(items(vectors))
    matches = collection.search(vectors[5] + 0.1, k=count, with_percentile=True)
    given, found = (np.array([getattr(match, name) for match in matches]) for name in ("score", "percentile"))
    assert np.abs(found - share_below(given, vectors, metric)).max() <= tolerance
    assert (np.diff(found) <= 0).all()
    if kind != "http":  # where only matches have them
        assert collection.percentiles(given.tolist()) == found.tolist()
        assert collection.percentiles([1e9, -1e9]) == [1.0, 0.0]
    assert collection.search(vectors[5], k=1)[0].percentile is None


def test_few_items_have_no_percentiles(store):
    vectors = made(10)
    collection = store.create("c", CollectionSpec(DIM))
    assert collection.percentiles([0.5]) is None
    collection.upsert(items(vectors[:9]))
    assert [match.percentile for match in collection.search(vectors[0], k=3, with_percentile=True)] == [None] * 3
    collection.upsert(items(vectors[9:], 9))
    assert collection.percentiles([0.5]) == pytest.approx(share_below([0.5], vectors))
    assert collection.search(vectors[0], where={"must": [{"key": "label", "exists": True}]}, with_percentile=True) == []
    for wrong in (0.5, ["high"], [float("nan")], [[0.5]], None):
        with refused("invalid_request"):
            collection.percentiles(wrong)


def test_pairs_are_sampled_again_when_the_vectors_of_a_tenth_of_the_items_changed(store):
    vectors = made(100)
    collection = store.create("c", CollectionSpec(DIM))
    collection.upsert(items(vectors[:50]))
    before = collection.percentiles(AT)
    collection.upsert(items(vectors[50:52], 50))
    collection.update_metadata({"label": "cat"}, where={"must_not": [{"ids": []}]})
    collection.update_each({item.id: {"label": "dog"} for item in items(vectors[:40])})
    assert collection.percentiles(AT) == before
    collection.upsert(items(vectors[52:], 52))
    assert collection.percentiles(AT) == pytest.approx(share_below(AT, vectors))
    collection.delete([item.id for item in items(vectors)[:60]])
    assert collection.percentiles(AT) == pytest.approx(share_below(AT, vectors[60:]))
    collection.upsert(items(vectors[:40], 60))  # the same ids with other vectors
    assert collection.percentiles(AT) == pytest.approx(share_below(AT, vectors[:40]))


def test_the_best_of_groups_have_percentiles_of_their_scores(store):
    vectors = made(EXACT)
    collection = store.create("c", CollectionSpec(DIM, indexed=("n",)))
    collection.upsert(items(vectors))
    found = best_per_group(collection, vectors[0], "n", 3, SearchOptions(with_percentile=True))
    assert [match.percentile for match in found] == collection.percentiles([match.score for match in found])
    assert [match.percentile for match in best_per_group(collection, vectors[0], "n", 3)] == [None] * 3


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize(("first", "times"), [(1, 201), (100, 20)], ids=["one image 200 times", "each image 20 times"])
def test_neither_copies_nor_the_order_of_items_change_percentiles(folder, metric, first, times):
    """Copies of an image differ a little, by the rounding of float32 if they are exact."""
    vectors = made(100) + (50 if metric == "l2" else 0)  # distances do not depend on an offset
    jitter = 1 + 1e-4 * np.random.default_rng(1).normal(size=(times - 1, first, DIM))
    copies = (vectors[:first] * jitter).reshape(-1, DIM).astype(np.float32)
    one, other = (folder.create(name, CollectionSpec(DIM, metric)) for name in ("one", "other"))
    one.upsert(items(vectors))
    given = [match.score for match in one.search(vectors[-1], k=60)[1:]]
    other.upsert(items(np.concatenate([vectors, copies])[np.random.default_rng(2).permutation(100 + len(copies))]))
    assert np.abs(np.array(one.percentiles(given)) - other.percentiles(given)).max() < TOLERANCE
    same = folder.create("same", CollectionSpec(300))
    same.upsert(items(np.repeat(np.random.default_rng(0).normal(size=(1, 300)).astype(np.float32), EXACT, axis=0)))
    assert same.percentiles([0.5]) is None


def test_pairs_are_sampled_again_when_the_transform_changed(folder):
    vectors = made(256)
    collection = folder.create("c", CollectionSpec(DIM, vectors="whiten"))
    collection.upsert(items(vectors[:-1]))
    raw = np.array(collection.percentiles(AT))
    assert np.abs(raw - share_below(AT, vectors)).max() < TOLERANCE
    collection.upsert(items(vectors[-1:], 255))
    collection.compact()  # fits the transform
    found = np.array(collection.percentiles(AT))
    assert np.abs(found - share_below(AT, VectorTransform.fit(vectors, "whiten")(vectors))).max() < TOLERANCE
    assert np.abs(found - raw).max() > 5 * TOLERANCE


def test_a_reader_follows_another_process(folder, tmp_path):
    vectors = made(100)
    folder.create("c", CollectionSpec(DIM)).upsert(items(vectors[:30]))
    with open_store(str(tmp_path / "only"), read_only=True) as reader:
        collection = reader.get("c")
        assert collection.percentiles(AT) == pytest.approx(share_below(AT, vectors[:30]))
        folder.get("c").upsert(items(vectors[30:], 30))
        assert collection.search(vectors[0], k=1, with_percentile=True)[0].percentile == 1.0
        assert collection.percentiles(AT) == pytest.approx(share_below(AT, vectors))


def test_threads_that_search_while_others_write_have_one_sample(folder):
    vectors = made(SAMPLED)
    collection = folder.create("c", CollectionSpec(DIM))
    collection.upsert(items(vectors))

    def search(i: int) -> tuple:
        if i % 4 == 0:
            collection.upsert(items(vectors[i : i + 1], i))
        return tuple(match.percentile for match in collection.search(vectors[7], k=5, with_percentile=True))

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(search, range(32)))) == 1


# ------------------------------------------------------------------------------ what a back end needs for them


class Line(Collection):
    """A back end of ten items, four of them far from all others."""

    def __init__(self) -> None:
        self.name, self.spec = "c", CollectionSpec(10, "l2")
        self.random_scores = RandomScores(self)
        self.step, self.present, self.broken = 1.0, object(), False

    @property
    def basis(self):
        return self.present

    def vector_changes(self):
        return (0,)

    def random_vectors(self):
        if self.broken:
            raise StoreUnreachable("no answer")
        return RandomVectors(self.step * np.diag(np.repeat([1, 10], [6, 4])).astype(np.float32), 10, (0,))

    def nearest(self, vectors, k, options):
        return [[Match("a", -4.5 * self.step, {})]]

    def share(self) -> float | None:
        return self.search(np.zeros(1), with_percentile=True)[0].percentile


FAR = 30 / 45  # pairs with an item that is far from all others


def test_a_transform_that_is_fitted_during_a_search_is_noticed():
    """Else the scores of its matches would be compared with those of other pairs."""
    line = Line()

    def fitted(*given) -> list[list[Match]]:
        found = Line.nearest(line, *given)
        line.nearest = lambda *again: Line.nearest(line, *again)
        line.present, line.step = object(), 100.0
        return found

    line.nearest = fitted
    [match] = line.search(np.zeros(1), with_percentile=True)
    assert (match.score, match.percentile) == (-450.0, FAR)


def test_a_search_succeeds_without_percentiles_while_vectors_cannot_be_read(caplog):
    line = Line()
    line.broken = True
    with caplog.at_level(logging.WARNING):
        assert [line.share(), line.share()] == [None, None]
    assert "no answer" in caplog.text
    with refused("store_unreachable"):
        line.percentiles([1.0])
    line.broken = False
    assert line.share() == FAR


def test_people_see_no_more_digits_than_the_sample_has():
    shares = [None, 0.0, 0.4821, 0.999, 0.9992, 1.0]
    assert list(map(percent_text, shares)) == ["", "0.0%", "48.2%", "99.9%", ">99.9%", ">99.9%"]
