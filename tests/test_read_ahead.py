"""Batches keep their limits, and results arrive in order while the next batch is in work."""

import threading

import pytest

from nnclr_hub.read_ahead import batches, read_ahead


@pytest.mark.parametrize(
    ("weights", "lists"),
    [
        ([], []),
        ([1] * 7, [[1, 1, 1], [1, 1, 1], [1]]),
        ([6, 4, 1], [[6, 4], [1]]),
        ([11, 1, 30, 30], [[11], [1], [30], [30]]),
        ([0, 0, 0, 0], [[0, 0, 0], [0]]),
    ],
)
def test_batches_are_bounded_by_number_and_by_weight(weights, lists):
    assert list(batches(weights, 3, int, 10)) == lists


def test_batches_without_weights_are_bounded_by_number():
    assert list(batches(iter("abcde"), 2)) == [["a", "b"], ["c", "d"], ["e"]]


def test_the_next_batch_is_in_work_while_the_caller_uses_one():
    started = {number: threading.Event() for number in range(6)}

    def work(number: int) -> int:
        started[number].set()
        return number * number

    results = read_ahead(batches(range(6), 2), work)
    assert next(results) == ([0, 1], [0, 1])
    assert all(started[number].wait(60) for number in (2, 3))
    assert not started[4].is_set()
    assert list(results) == [([2, 3], [4, 9]), ([4, 5], [16, 25])]


def test_an_exception_reaches_the_caller_and_stops_the_rest():
    done = []

    def work(number: int) -> None:
        done.append(number)
        if number == 1:
            raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        list(read_ahead(batches(range(100), 2), work, workers=1))
    assert max(done) < 6
