"""Which rows of a main part are dead, and since when."""

from __future__ import annotations

import numpy as np


class Deaths:
    """A bitmap of the living for faiss, and a log for readers whose view is older than the last deaths.

    One writer kills; readers take the bitmap first and the log afterwards, so that whatever vanished
    from the bitmap under their eyes is in the log.

    Args:
        rows: N, how many rows there are.
    """

    def __init__(self, rows: int) -> None:
        self.bitmap = np.full(-(-rows // 8), 255, np.uint8)
        self.count = 0
        self._log: list[tuple[int, np.ndarray]] = []

    def kill(self, rows: np.ndarray, seq: int) -> None:
        """Rows (n,) int64 are dead from change `seq` on."""
        if len(rows):
            self._log.append((seq, rows))
            self.count += len(rows)
            np.bitwise_and.at(self.bitmap, rows >> 3, ~(1 << (rows & 7)).astype(np.uint8))

    def since(self, seq: int) -> list[tuple[int, np.ndarray]]:
        """Changes after `seq`, newest first, with the rows that died at them."""
        late = []
        for entry in reversed(self._log):
            if entry[0] <= seq:
                break
            late.append(entry)
        return late

    def living(self, rows: int) -> np.ndarray:
        """The rows that live, (n,) int64 ascending, of `rows` in all."""
        return np.flatnonzero(np.unpackbits(self.bitmap, bitorder="little")[:rows])


def bitmap_of(rows: np.ndarray, total: int) -> np.ndarray:
    """Rows (n,) of 0 ... total-1 as a bitmap (total / 8,) uint8, little end first."""
    chosen = np.zeros(total, bool)
    chosen[rows] = True
    return np.packbits(chosen, bitorder="little")
