"""The rows that pass a filter in one view of the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnclr_hub.store.ann.among import Among, Chosen
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.store.columns.segment import Segment
from nnclr_hub.store.where import Group

SPARSE = 0.05  # of the rows of an index: fewer are kept as positions


class Passing(Among):
    """What passes a filter.

    Args:
        seq: the change that the view is up to.
        group: the filter.
        segments: the rows of the view.
        ids: the row ids of the items of each condition on ids.
        before: what passed it in an earlier view, if that depends on nothing but the rows.
    """

    def __init__(
        self,
        seq: int,
        group: Group,
        segments: Sequence[Segment],
        ids: Mapping[tuple[str, ...], np.ndarray],
        before: Passing | None,
    ) -> None:
        self.seq = seq
        self._dead = {segment: segment.dead for segment in segments}
        self._matching: dict[Segment, np.ndarray] = {}  # whether a row, alive or dead, passes
        self.masks: dict[Segment, np.ndarray] = {}  # whether it is alive and passes
        changed: set[Segment] = set()
        for segment in segments:
            if before is not None and segment in before.masks:
                self._matching[segment] = before._matching[segment]
                if before._dead[segment] == segment.dead:
                    self.masks[segment] = before.masks[segment]
                    continue
            else:
                check_cancelled()
                self._matching[segment] = segment.matching(group, ids)
            changed.add(segment)
            self.masks[segment] = self._matching[segment] & segment.live
        self.count = sum(int(np.count_nonzero(mask)) for mask in self.masks.values())
        self._within: tuple[np.ndarray, Chosen] | None = None
        # the flags of the index change only where segments did
        self._flags: tuple[np.ndarray, np.ndarray, dict[Segment, np.ndarray], set[Segment]] | None = None
        known = before._within if before is not None else None
        self._last = None if known is None else known[1]
        if before is not None and known is not None and "flags" in vars(known[1]):
            outdated = {one: mask for one, mask in before.masks.items() if one not in self.masks or one in changed}
            self._flags = known[0], known[1].flags, outdated, changed

    def __len__(self) -> int:
        return self.count

    @property
    def rids(self) -> np.ndarray:
        """The row ids (n,) int64 ascending."""
        parts = [segment.rids[np.flatnonzero(mask)] for segment, mask in self.masks.items()]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]), kind="stable")

    def within(self, known: np.ndarray) -> Chosen:
        if self._within is None or self._within[0] is not known:
            self._within = known, self._chosen(known)
            self._flags = None
        return self._within[1]

    def after(self, rid: int) -> np.ndarray:
        parts = [np.zeros(0, np.int64)]
        for segment, mask in self.masks.items():
            if segment.rids[-1] > rid:
                some = segment.rids[np.flatnonzero(mask)]
                parts.append(some[np.searchsorted(some, rid, "right") :])
        return np.sort(np.concatenate(parts))

    def _chosen(self, known: np.ndarray) -> Chosen:
        total = len(known)
        if self.count <= SPARSE * total:
            parts = [segment.places(known)[np.flatnonzero(mask)] for segment, mask in self.masks.items()]
            rows = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]), kind="stable")
            rows = rows[: np.searchsorted(rows, total)]
            # most commits change none of them, and the index may have copied their vectors
            last, self._last = self._last, None
            return last if last is not None and last.same(total, rows) else Chosen(total, rows=rows)
        reused = self._flags if self._flags is not None and self._flags[0] is known else None
        flags = np.zeros(total + 1, bool)  # the last one is of rows that the index does not have
        # an edited row is dead in its old segment and alive in a newer one, which alone may change its flag
        if reused is not None:
            flags[:total] = reused[1]
            for segment, mask in reused[2].items():
                flags[segment.places(known)[mask]] = False
        for segment, mask in self.masks.items():
            if reused is None or segment in reused[3]:
                flags[segment.places(known)[mask]] = True
        return Chosen(total, flags=flags[:total])
