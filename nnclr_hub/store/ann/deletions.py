"""Which rows of a main part are deleted, and since which change."""

from __future__ import annotations

import numpy as np


class Deletions:
    """A bitmap of the live rows for faiss, and a log for readers whose view is older than the last deletions.

    One writer deletes. Readers take the bitmap first and the log afterwards. A row that vanishes from the bitmap
    during a search is therefore always in the log.

    Args:
        rows: N, number of rows.
    """

    def __init__(self, rows: int) -> None:
        self.bitmap = np.full(-(-rows // 8), 255, np.uint8)
        self.count = 0
        self._log: list[tuple[int, np.ndarray]] = []

    def delete(self, rows: np.ndarray, seq: int) -> None:
        """Mark rows (n,) int64 as deleted from change `seq` on."""
        if len(rows):
            # the log first: a reader that finds a bit cleared must find the row in the log
            self._log.append((seq, rows))
            self.count += len(rows)
            np.bitwise_and.at(self.bitmap, rows >> 3, ~(1 << (rows & 7)).astype(np.uint8))

    def since(self, seq: int) -> list[tuple[int, np.ndarray]]:
        """Return the changes after `seq`, newest first, with the rows that each deleted."""
        late = []
        for entry in reversed(self._log):
            if entry[0] <= seq:
                break
            late.append(entry)
        return late

    def live(self, rows: int) -> np.ndarray:
        """Return the live rows, (n,) int64 ascending, of `rows` in all."""
        return np.flatnonzero(np.unpackbits(self.bitmap, bitorder="little")[:rows])


def bitmap_of(rows: np.ndarray, total: int) -> np.ndarray:
    """Return rows (n,) of 0 ... total-1 as a bitmap (total / 8,) uint8, little-endian bits."""
    chosen = np.zeros(total, bool)
    chosen[rows] = True
    return np.packbits(chosen, bitorder="little")
