"""The rows that came since the main part of an index was built: few, looked at one by one, exact.

One writer appends and kills; any number of readers scan meanwhile, because a row is written before
`count` says that it is there, and its memory never moves.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nnclr_hub.store.ann.compare import compare

CHUNK = 4096
ALIVE = np.iinfo(np.int64).max


class Delta:
    """Rows in the order in which they came.

    Args:
        dim: D.
        metric: "cosine", "dot" or "l2".
    """

    def __init__(self, dim: int, metric: str) -> None:
        self._dim = dim
        self._metric = metric
        self._vectors: list[np.ndarray] = []  # (CHUNK, D) float32 each
        self._rids: list[np.ndarray] = []  # (CHUNK,) int64 each, ascending
        self._died: list[np.ndarray] = []  # (CHUNK,) int64 each: the change at which the row died, or ALIVE
        self.count = 0

    def append(self, rids: np.ndarray, vectors: np.ndarray) -> None:
        """Adds rows: rids (n,) int64 ascending and above all earlier ones, vectors (n, D) float32."""
        done = 0
        while done < len(rids):
            place = self.count % CHUNK
            if place == 0 and self.count == CHUNK * len(self._vectors):
                self._died.append(np.full(CHUNK, ALIVE))
                self._rids.append(np.empty(CHUNK, np.int64))
                self._vectors.append(np.empty((CHUNK, self._dim), np.float32))
            some = slice(done, done + CHUNK - place)
            part = rids[some]
            self._vectors[-1][place : place + len(part)] = vectors[some]
            self._rids[-1][place : place + len(part)] = part
            done += len(part)
            self.count += len(part)

    def kill(self, rids: np.ndarray, seq: int) -> None:
        """Marks rows (n,) int64 ascending as dead from change `seq` on; unknown ones are passed over."""
        for number, (known, died) in enumerate(zip(self._rids, self._died, strict=True)):
            used = min(CHUNK, self.count - number * CHUNK)
            if len(rids) and used > 0 and rids[0] <= known[used - 1]:
                died[positions(known[:used], rids)] = seq

    def tail(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies of the row ids (n,) and of when they died (n,), from row `start` on, without the vectors."""
        used = range(start, self.count)
        rids = [self._rids[n][self._piece(n, used)] for n in self._chunks(used)]
        died = [self._died[n][self._piece(n, used)] for n in self._chunks(used)]
        none = np.zeros(0, np.int64)
        return np.concatenate([none, *rids]), np.concatenate([none, *died])

    def batches(self, stop: int, alive: np.ndarray) -> Iterator[np.ndarray]:
        """Vectors (n, D) of rows 0 ... stop-1 where `alive` (stop,) says so, a chunk at a time."""
        used = range(stop)
        for n in self._chunks(used):
            piece = self._piece(n, used)
            yield self._vectors[n][piece][alive[n * CHUNK : n * CHUNK + piece.stop]]

    @staticmethod
    def _chunks(rows: range) -> range:
        return range(rows.start // CHUNK, -(-rows.stop // CHUNK)) if rows else range(0)

    @staticmethod
    def _piece(chunk: int, rows: range) -> slice:
        return slice(max(0, rows.start - chunk * CHUNK), min(CHUNK, rows.stop - chunk * CHUNK))

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Copies of rows start ... stop-1: rids (n,), vectors (n, D), and when they died (n,)."""
        parts = [(np.zeros(0, np.int64), np.zeros((0, self._dim), np.float32), np.zeros(0, np.int64))]
        used = range(start, stop)
        for number in self._chunks(used):
            piece = self._piece(number, used)
            parts.append((self._rids[number][piece], self._vectors[number][piece], self._died[number][piece]))
        rids, vectors, died = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return rids, vectors, died

    def scan(self, queries: np.ndarray, k: int, among: np.ndarray | None, at: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best rows for each query as they were at change `at`.

        Args:
            queries: (n, D) float32.
            k: at least 1.
            among: (m,) int64 ascending row ids, the candidates; None for all.
            at: rows that died later still count.

        Returns:
            scores (n, j) float32 and rids (n, j) int64, j at most k a chunk, in no order; -inf and -1 for none.
        """
        scores, rids = [np.zeros((len(queries), 0), np.float32)], [np.zeros((len(queries), 0), np.int64)]
        count = self.count
        for number in range(-(-count // CHUNK)):
            used = min(CHUNK, count - number * CHUNK)
            known = self._rids[number][:used]
            alive = self._died[number][:used] > at
            if among is not None:
                chosen = np.zeros(used, bool)
                chosen[positions(known, among)] = True
                alive &= chosen
            if not alive.any():
                continue
            vectors = self._vectors[number][:used]
            if not alive.all():
                vectors, known = vectors[alive], known[alive]
            found = compare(queries, vectors, known, k, self._metric)
            scores.append(found[0])
            rids.append(found[1])
        return np.concatenate(scores, axis=1), np.concatenate(rids, axis=1)


def positions(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where those of `wanted` that are in `known` stand; both (n,) int64, ascending."""
    place = np.searchsorted(known, wanted)
    inside = place < len(known)
    place, wanted = place[inside], wanted[inside]
    return place[known[place] == wanted]
