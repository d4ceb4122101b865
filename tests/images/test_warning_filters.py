"""Pillow's warnings neither escape nor leave the process's filters changed, however threads overlap."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from nnclr_hub.images.warning_filters import ignore_warnings


def test_overlapping_threads_leave_the_filters_as_they_were():
    """First in, first out: the order in which catch_warnings in two threads leaves the wrong filters behind."""
    before = list(warnings.filters)
    first_in, second_in, first_out = (threading.Event() for _ in range(3))

    def first():
        with ignore_warnings():
            first_in.set()
            second_in.wait(120)
        first_out.set()

    def second():
        first_in.wait(120)
        with ignore_warnings():
            second_in.set()
            first_out.wait(120)
            inside.append(list(warnings.filters))

    inside: list[list] = []
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(first), pool.submit(second)]:
            future.result()
    assert inside[0] != before
    assert list(warnings.filters) == before


def test_too_many_pixels_are_an_error_and_other_peoples_warnings_go_through():
    with ignore_warnings(), pytest.raises(Image.DecompressionBombWarning):
        Image._decompression_bomb_check((10_000, 10_000))
    with ignore_warnings(), pytest.warns(UserWarning, match="mine"):
        warnings.warn("mine", UserWarning, stacklevel=1)


def test_an_error_inside_leaves_too():
    before = list(warnings.filters)
    with pytest.raises(KeyError), ignore_warnings():
        raise KeyError
    assert list(warnings.filters) == before
