"""What changed since the main part of an index was built: rows added to the delta, and deleted rows of the main part.

The delta is small. Its rows are compared one by one, which is exact.

One writer appends and deletes while any number of readers scan. That needs no lock: a row is written before `count`
includes it, and blocks never move in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nnclr_hub.store.ann.compare import compare
from nnclr_hub.store.cancellation import check_cancelled

LIVE = np.iinfo(np.int64).max


class Delta:
    """Rows in the order in which they were added, in blocks of a fixed size.

    Args:
        dim: D.
        metric: "cosine", "dot" or "l2".
        block: rows per block.
    """

    def __init__(self, dim: int, metric: str, block: int) -> None:
        self._dim = dim
        self._metric = metric
        self._block = block
        self._vectors: list[np.ndarray] = []  # (block, D) float32 each
        self._rids: list[np.ndarray] = []  # (block,) int64 each, ascending
        self._deleted: list[np.ndarray] = []  # (block,) int64 each: the change that deleted the row, or LIVE
        self.count = 0

    def append(self, rids: np.ndarray, vectors: np.ndarray) -> None:
        """Add rows: rids (n,) int64 ascending and above all earlier ones, vectors (n, D) float32."""
        done = 0
        while done < len(rids):
            start = self.count % self._block
            if start == 0 and self.count == self._block * len(self._vectors):
                self._deleted.append(np.full(self._block, LIVE))
                self._rids.append(np.empty(self._block, np.int64))
                self._vectors.append(np.empty((self._block, self._dim), np.float32))
            some = slice(done, done + self._block - start)
            part = rids[some]
            self._vectors[-1][start : start + len(part)] = vectors[some]
            self._rids[-1][start : start + len(part)] = part
            done += len(part)
            self.count += len(part)  # last, which is what makes the rows visible

    def delete(self, rids: np.ndarray, seq: int) -> None:
        """Mark rows (n,) int64 ascending as deleted from change `seq` on; unknown ones are ignored."""
        for number, (known, deleted) in enumerate(zip(self._rids, self._deleted, strict=True)):
            used = min(self._block, self.count - number * self._block)
            if len(rids) and used > 0 and rids[0] <= known[used - 1]:
                deleted[positions(known[:used], rids)] = seq

    def tail(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Return copies of the row ids (n,) and of their deletions (n,) from row `start` on, without the vectors."""
        used = range(start, self.count)
        rids = [self._rids[n][self._part(n, used)] for n in self._blocks(used)]
        deleted = [self._deleted[n][self._part(n, used)] for n in self._blocks(used)]
        empty = np.zeros(0, np.int64)
        return np.concatenate([empty, *rids]), np.concatenate([empty, *deleted])

    def batches(self, stop: int, wanted: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the vectors (n, D) of rows 0 ... stop-1 where `wanted` (stop,) is True, one block at a time."""
        used = range(stop)
        for n in self._blocks(used):
            part = self._part(n, used)
            yield self._vectors[n][part][wanted[n * self._block : n * self._block + part.stop]]

    def append_from(self, other: Delta, start: int) -> None:
        """Add the rows of another delta from row `start` on, one block at a time; deletions are not copied."""
        used = range(start, other.count)
        for n in other._blocks(used):
            part = other._part(n, used)
            self.append(other._rids[n][part], other._vectors[n][part])

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return copies of rows start ... stop-1: rids (n,), vectors (n, D) and their deletions (n,)."""
        parts = [(np.zeros(0, np.int64), np.zeros((0, self._dim), np.float32), np.zeros(0, np.int64))]
        used = range(start, stop)
        for n in self._blocks(used):
            part = self._part(n, used)
            parts.append((self._rids[n][part], self._vectors[n][part], self._deleted[n][part]))
        rids, vectors, deleted = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return rids, vectors, deleted

    def scan(self, queries: np.ndarray, k: int, among: np.ndarray | None, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best rows for each query, as they were at change `at`.

        Args:
            queries: (n, D) float32.
            k: at least 1.
            among: (m,) int64 ascending row ids to consider; None for all.
            at: rows that were deleted later still count.

        Returns:
            scores (n, j) float32 and rids (n, j) int64, up to k per block, in no order; missing ones are -inf and -1.
        """
        scores, rids = [np.zeros((len(queries), 0), np.float32)], [np.zeros((len(queries), 0), np.int64)]
        count = self.count  # read once: rows that are added from here on are newer than the caller's view
        for number in range(-(-count // self._block)):
            check_cancelled()
            used = min(self._block, count - number * self._block)
            vectors, known, deleted = (part[number][:used] for part in (self._vectors, self._rids, self._deleted))
            if among is not None:
                chosen = positions(known, among)
                chosen = chosen[deleted[chosen] > at]
                vectors, known = vectors[chosen], known[chosen]
            elif not (live := deleted > at).all():
                vectors, known = vectors[live], known[live]
            if not len(known):
                continue
            found = compare(queries, vectors, known, k, self._metric)
            scores.append(found[0])
            rids.append(found[1])
        return np.concatenate(scores, axis=1), np.concatenate(rids, axis=1)

    def _blocks(self, rows: range) -> range:
        return range(rows.start // self._block, -(-rows.stop // self._block)) if rows else range(0)

    def _part(self, block: int, rows: range) -> slice:
        first = block * self._block
        return slice(max(0, rows.start - first), min(self._block, rows.stop - first))


def positions(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the positions in `known` of those of `wanted` that are in it; both (n,) int64, ascending."""
    place = np.searchsorted(known, wanted)
    inside = place < len(known)
    place, wanted = place[inside], wanted[inside]
    return place[known[place] == wanted]


# ------------------------------------------------------------------------------ deletions


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
