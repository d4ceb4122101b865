"""The values of one metadata key for the rows of a segment, in few bytes and in an order that answers ranges.

The distinct numbers and strings are sorted, and each row has the code of its value:

    0 absent, 1 null, 2 false, 3 true, 4 a list, 5 an object, from 6 on the numbers, then the strings

So equality, ranges and prefixes are intervals of codes, which are compared at once for all rows. Elements of lists have
codes of the same kind. A column never changes.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from nnclr_hub.store.where import ABSENT, COMPARISONS, Condition, instant, rounded

_ABSENT, _NULL, _FALSE, _TRUE, _LIST, _OBJECT, _FIRST = range(7)
_FEW = 8  # intervals that are compared one by one
_EXACT = 2**53  # integers up to here are floats without loss


class Column:
    """One key of a segment.

    Args:
        values: of each row, as JSON has them; ABSENT where an item lacks the key.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        lists = [(row, value) for row, value in enumerate(values) if type(value) is list]
        elements = [element for _, value in lists for element in value]
        known = {rounded(value) for value in (*values, *elements) if type(value) is int or type(value) is float}
        texts = {value for value in (*values, *elements) if type(value) is str}
        self.numbers = _packed_numbers(sorted(known))
        self.strings = Strings(sorted(text.encode() for text in texts))
        code_of: dict[Any, int] = {number: _FIRST + i for i, number in enumerate(self.numbers)}
        after = _FIRST + len(self.numbers)
        code_of |= {self.strings[i].decode(): after + i for i in range(len(self.strings))}
        kind = np.uint16 if after + len(self.strings) < 1 << 16 else np.uint32

        def encoded(some: Sequence[Any]) -> np.ndarray:
            return np.fromiter((_code(value, code_of) for value in some), kind, len(some))

        self.codes = encoded(values)
        self.list_rows = np.array([row for row, _ in lists], np.int64)
        self.lengths = np.array([len(value) for _, value in lists], np.int64)
        self.elements = encoded(elements)

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        arrays = (self.codes, self.list_rows, self.lengths, self.elements)
        derived = 2 * 8 * len(self.elements)  # `element_rows` and `_sets`
        return sum(one.nbytes for one in arrays) + derived + 8 * len(self.numbers) + self.strings.nbytes

    @cached_property
    def element_rows(self) -> np.ndarray:
        """The row of each element of a list."""
        return np.repeat(self.list_rows, self.lengths)

    @cached_property
    def _sets(self) -> tuple[np.ndarray, np.ndarray]:
        """The row and the code of each element, once per row, however often a list repeats it."""
        size = _FIRST + len(self.numbers) + len(self.strings)
        pairs = np.unique(self.element_rows * size + self.elements)
        return pairs // size, (pairs % size).astype(self.elements.dtype)

    # ---- values

    @cached_property
    def distinct(self) -> list[Any]:
        """The value of each code; [] and {} for lists and objects."""
        texts = [self.strings[i].decode() for i in range(len(self.strings))]
        return [ABSENT, None, False, True, [], {}, *self.numbers, *texts]

    @staticmethod
    def is_scalar(code: int) -> bool:
        """Return whether a code is that of null, a boolean, a number or a string."""
        return code not in (_ABSENT, _LIST, _OBJECT)

    def values(self) -> list[Any]:
        """Return the value of each row; objects are empty."""
        distinct = self.distinct
        made = [distinct[code] for code in self.codes.tolist()]
        ends = [0, *accumulate(self.lengths.tolist())]
        elements = [distinct[code] for code in self.elements.tolist()]
        for row, (start, stop) in zip(self.list_rows.tolist(), pairwise(ends), strict=True):
            made[row] = elements[start:stop]
        return made

    @cached_property
    def floats(self) -> np.ndarray:
        """The number of each row (n,) float64; NaN for other values."""
        known = np.full(_FIRST + len(self.numbers) + len(self.strings), np.nan)
        known[_FIRST : _FIRST + len(self.numbers)] = [float(number) for number in self.numbers]
        return known[self.codes]

    def counts(self, rows: np.ndarray) -> np.ndarray:
        """Return how many of the rows that are True in `rows` (n,) have each code; a list counts for its elements."""
        size = _FIRST + len(self.numbers) + len(self.strings)
        plain = np.bincount(self.codes[rows], minlength=size)
        if not len(self.elements):
            return plain
        of_row, elements = self._sets
        return plain + np.bincount(elements[rows[of_row]], minlength=size)

    # ---- conditions

    def holds(self, condition: Condition) -> np.ndarray:
        """Return for each row (n,) bool whether the condition holds; see `store.where`."""
        kind, wanted = condition.kind, condition.value
        if kind == "exists":
            return (self.codes != _ABSENT) == wanted
        if kind == "contains":
            return self._with_elements(self._spans("match", wanted))
        if kind == "contains_any":
            return self._with_elements(self._spans("in", wanted))
        if kind == "contains_all":
            return self._with_all(wanted)
        if kind == "length":
            made = np.zeros(len(self.codes), bool)
            made[self.list_rows[within_each(self.lengths, wanted)]] = True
            return made
        if kind == "date":
            known = np.zeros(_FIRST + len(self.numbers) + len(self.strings), bool)
            moments, are_dates = self._instants
            known[_FIRST + len(self.numbers) :] = are_dates & within_each(moments, wanted)
            return known[self.codes]
        return self._inside(self.codes, self._spans(kind, wanted))

    @cached_property
    def _instants(self) -> tuple[np.ndarray, np.ndarray]:
        """The moment (n,) int64 that each distinct string is a date of, and whether it is one."""
        found = [instant(self.strings[i].decode()) for i in range(len(self.strings))]
        moments = np.array([moment or 0 for moment in found], np.int64)
        return moments, np.array([moment is not None for moment in found], bool)

    def _with_all(self, wanted: Sequence[Any]) -> np.ndarray:
        """Return which rows are lists that contain all scalars, in one pass over the elements."""
        made = np.zeros(len(self.codes), bool)
        spans = [self._spans("match", one) for one in wanted]
        if all(spans):  # else no list has one of them
            codes = {start for [(start, _)] in spans}
            size = _FIRST + len(self.numbers) + len(self.strings)
            known = np.zeros(size, bool)
            known[list(codes)] = True
            rows, elements = self._sets
            found = np.bincount(rows[known[elements]], minlength=len(self.codes))
            made[self.list_rows] = found[self.list_rows] == len(codes)
        return made

    def _with_elements(self, spans: list[tuple[int, int]]) -> np.ndarray:
        made = np.zeros(len(self.codes), bool)
        if len(self.elements):
            made[self.element_rows[self._inside(self.elements, spans)]] = True
        return made

    def _inside(self, codes: np.ndarray, spans: list[tuple[int, int]]) -> np.ndarray:
        """Return which codes are in one of the intervals."""
        if len(spans) > _FEW:
            known = np.zeros(_FIRST + len(self.numbers) + len(self.strings), bool)
            for start, stop in spans:
                known[start:stop] = True
            return known[codes]
        made = np.zeros(len(codes), bool)
        for start, stop in spans:
            made |= codes == start if stop == start + 1 else (codes >= start) & (codes < stop)
        return made

    def _spans(self, kind: str, wanted: Any) -> list[tuple[int, int]]:
        """Return the intervals of codes for which a condition on a scalar holds; empty ones are left out."""
        if kind == "in":
            return [span for one in wanted for span in self._spans("match", one)]
        if kind == "match" and wanted is None:
            return [(_NULL, _NULL + 1)]
        if kind == "match" and isinstance(wanted, bool):
            return [(_FALSE + wanted, _TRUE + wanted)]
        if kind == "match":
            return self._spans("range", (("gte", wanted), ("lte", wanted)))
        texts = kind == "prefix" or isinstance(wanted[0][1], str)
        known: Sequence[Any] = self.strings if texts else self.numbers
        start, stop = 0, len(known)
        if kind == "prefix":
            prefix = wanted.encode()
            start = bisect_left(known, prefix)
            # UTF-8 has no byte 255, so the last byte can always be increased
            stop = bisect_left(known, prefix[:-1] + bytes([prefix[-1] + 1])) if prefix else stop
        else:
            for name, bound in wanted:
                if isinstance(bound, str) != texts:
                    return []
                value = bound.encode() if texts else bound
                place = (bisect_right if name in ("gt", "lte") else bisect_left)(known, value)
                start, stop = (max(start, place), stop) if name in ("gt", "gte") else (start, min(stop, place))
        first = _FIRST + (len(self.numbers) if texts else 0)
        return [(first + start, first + stop)] if start < stop else []


def within_each(values: np.ndarray, bounds: Sequence[tuple[str, Any]]) -> np.ndarray:
    """Return for each number (n,) bool whether it is inside of all bounds."""
    made = np.ones(len(values), bool)
    for name, bound in bounds:
        made &= COMPARISONS[name](values, bound)
    return made


def _code(value: Any, code_of: dict[Any, int]) -> int:
    kind = type(value)
    if kind is str or kind is int or kind is float:
        return code_of[rounded(value)]
    if kind is bool:
        return _TRUE if value else _FALSE
    if value is ABSENT:
        return _ABSENT
    return _NULL if value is None else _LIST if kind is list else _OBJECT


def _packed_numbers(numbers: list[Any]) -> Sequence[Any]:
    """Return sorted numbers in 8 bytes each, if that loses nothing."""
    if all(type(number) is int for number in numbers):
        return array("q", numbers)  # `rounded` leaves none beyond 64 bits
    exact: Callable[[Any], bool] = lambda number: type(number) is float or abs(number) <= _EXACT  # noqa: E731
    return array("d", numbers) if all(map(exact, numbers)) else numbers


class Strings(Sequence[bytes]):
    """Sorted strings, one after another in one object."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._data = b"".join(texts)
        self._ends = array("Q", accumulate(map(len, texts), initial=0))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> bytes:  # pyright: ignore[reportIncompatibleMethodOverride] - no slices
        return self._data[self._ends[i] : self._ends[i + 1]]

    @property
    def nbytes(self) -> int:
        return len(self._data) + 8 * len(self._ends) + sys.getsizeof(b"")
