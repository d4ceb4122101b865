"""The rows that a search is restricted to, and what an index needs of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np

from nnclr_hub.store.ann.delta import positions
from nnclr_hub.store.ann.main_index import FAISS


class Chosen:
    """Rows of the main part of an index, of `total` in all; given as positions or as flags.

    Args:
        total: rows of the main part.
        rows: (n,) int64 ascending.
        flags: (total,) bool.

    Attributes:
        searched: whether a search has compared with these rows.
    """

    def __init__(self, total: int, *, rows: np.ndarray | None = None, flags: np.ndarray | None = None) -> None:
        self._total = total
        self.searched = False
        if rows is not None:
            self.rows = rows
            self.count = len(rows)
        if flags is not None:
            self.flags = flags
            self.count = int(np.count_nonzero(flags))

    def same(self, total: int, rows: np.ndarray) -> bool:
        """Return whether these are the rows, and were given as positions."""
        return self._total == total and "rows" in vars(self) and np.array_equal(self.rows, rows)

    @cached_property
    def rows(self) -> np.ndarray:
        """Positions (n,) int64 ascending."""
        return np.flatnonzero(self.flags)

    @cached_property
    def flags(self) -> np.ndarray:
        """Whether each row (total,) is chosen."""
        made = np.zeros(self._total, bool)
        made[self.rows] = True
        return made

    @cached_property
    def scan(self) -> Any:
        """Search parameters of faiss for comparing with each row."""
        return FAISS.SearchParameters(sel=FAISS.IDSelectorArray(self.rows))

    @cached_property
    def bitmap(self) -> np.ndarray:
        """The flags as faiss reads them, (total / 8,) uint8 with little-endian bits."""
        return np.packbits(self.flags, bitorder="little")


class Among(Protocol):
    """Rows of a collection."""

    def within(self, known: np.ndarray) -> Chosen:
        """Return those in the main part of an index, whose rows are `known` (n,) int64 ascending."""
        ...

    def after(self, rid: int) -> np.ndarray:
        """Return the row ids (m,) int64 ascending above `rid`."""
        ...


class RowIds(Among):
    """Rows by their ids (n,) int64 ascending."""

    def __init__(self, rids: np.ndarray) -> None:
        self.rids = rids

    def within(self, known: np.ndarray) -> Chosen:
        return Chosen(len(known), rows=positions(known, self.rids))

    def after(self, rid: int) -> np.ndarray:
        return self.rids[np.searchsorted(self.rids, rid, "right") :]
