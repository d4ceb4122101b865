"""The sample behind percentiles: when it is computed, which threads wait for it, and errors."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nnclr_hub.errors import StoreUnreachable
from nnclr_hub.store.base import Collection, CollectionSpec, Match
from nnclr_hub.store.cancellation import cancellable
from nnclr_hub.store.percentiles import RandomScores, RandomVectors

WAIT = 30  # seconds, for what takes a moment


class Counted(Collection):
    """Ten items, four of them far from all others, whose vectors are read when `go` is set; it counts how often."""

    def __init__(self) -> None:
        self.name, self.spec = "c", CollectionSpec(10, "l2")
        self.random_scores = RandomScores(self)
        self.step, self.changes, self.present = 1.0, 0, object()
        self.reads, self.waiting = 0, set()
        self.reading, self.go = threading.Event(), threading.Event()
        self.go.set()

    @property
    def basis(self):
        return self.present

    def vector_changes(self):
        return (self.changes,)

    def random_vectors(self):
        changes, step = self.vector_changes(), self.step
        self.blocked()
        return RandomVectors(step * np.diag(np.repeat([1, 10], [6, 4])).astype(np.float32), 10, changes)

    def blocked(self) -> None:
        self.reads += 1
        self.reading.set()
        assert self.go.wait(WAIT)

    def nearest(self, vectors, k, options):
        return [[Match("a", -4.5 * self.step, {})]]

    def share(self) -> float:
        """Return the share of pairs that are more than 4.5 apart, which depends on the step of the sample."""
        with cancellable(lambda: self.waiting.add(threading.get_ident())):
            return self.percentiles([-4.5])[0]

    def search_share(self) -> float | None:
        """Return the percentile of the only match of a search."""
        with cancellable(lambda: self.waiting.add(threading.get_ident())):
            return self.search(np.zeros(1), with_percentile=True)[0].percentile

    def until_busy(self, threads: int) -> None:
        """Wait until so many threads read vectors or wait for another thread."""
        end = time.monotonic() + WAIT
        while self.reads + len(self.waiting) < threads:
            assert time.monotonic() < end
            time.sleep(0.01)


FAR = 30 / 45  # pairs with an item that is far from all others


@pytest.fixture
def line():
    return Counted()


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


# ---- threads


def test_threads_sample_once(line, threads):
    line.go.clear()
    answers = [threads.submit(line.share) for _ in range(8)]
    line.until_busy(8)
    line.go.set()
    assert [answer.result(WAIT) for answer in answers] == [FAR] * 8
    assert line.reads == 1


def test_while_one_thread_samples_again_others_use_the_old_sample(line, threads):
    assert line.share() == FAR
    line.step, line.changes = 100.0, 10
    line.go.clear()
    renewing = threads.submit(line.share)
    assert line.reading.wait(WAIT)
    assert threads.submit(line.share).result(WAIT) == FAR
    line.go.set()
    assert renewing.result(WAIT) == 1.0
    assert line.share() == 1.0
    assert line.reads == 2


def test_a_thread_with_an_older_state_does_not_replace_a_newer_sample(line):
    line.share()
    line.changes = 10
    changes = line.vector_changes

    def overtaken():
        line.vector_changes = changes
        before = changes()
        line.changes = 20
        line.share()  # as another thread would, before this one gets the lock
        return before

    line.vector_changes = overtaken
    assert line.share() == FAR
    assert line.reads == 2


def test_a_basis_that_changes_during_the_reading_is_noticed(line):
    read = line.random_vectors

    def fitting():
        found = read()
        if line.reads == 1:
            line.present, line.step = object(), 100.0
        return found

    line.random_vectors = fitting
    [match] = line.search(np.zeros(1), with_percentile=True)
    assert (match.score, match.percentile, line.reads) == (-450.0, FAR, 2)


def test_a_call_that_waits_for_the_first_sample_can_be_cancelled(line, threads):
    def cancelled() -> None:
        raise TimeoutError

    def waiting() -> None:
        with cancellable(cancelled), pytest.raises(TimeoutError):
            line.percentiles([0.5])

    line.go.clear()
    first = threads.submit(line.share)
    assert line.reading.wait(WAIT)
    try:
        threads.submit(waiting).result(WAIT)
    finally:
        line.go.set()
    assert first.result(WAIT) == FAR


# ---- errors


def test_a_search_succeeds_without_percentiles_if_vectors_cannot_be_read(line, caplog):
    def unreachable():
        line.reads += 1
        raise StoreUnreachable("no answer")

    line.random_vectors, read = unreachable, line.random_vectors
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert line.search_share() is None
    assert len(caplog.records) == 1
    assert line.reads == 1, "searches do not wait for every failure"
    with pytest.raises(StoreUnreachable):
        line.percentiles([1.0])
    line.random_vectors = read
    assert line.share() == FAR
    assert line.search_share() == FAR


def test_threads_do_not_repeat_an_attempt_that_failed_while_they_waited(line, threads):
    def unreachable():
        line.blocked()
        raise StoreUnreachable("no answer")

    line.random_vectors = unreachable
    line.go.clear()
    answers = [threads.submit(line.search_share) for _ in range(8)]
    line.until_busy(8)
    line.go.set()
    assert [answer.result(WAIT) for answer in answers] == [None] * 8
    assert line.reads == 1
