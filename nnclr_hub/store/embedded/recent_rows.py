"""Ids and metadata of the rows that searches returned recently, in step with the catalog.

The writer announces each commit after it is durable and before the index has it. A search at a change finds rows here
only while no later one was announced, so it never mixes two states of the catalog.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from nnclr_hub.store.embedded.rows import Matched

ROW_BYTES = 800  # of a row with short texts, about; parsed JSON takes some times the size of its text
TEXT_FACTOR = 4


class RecentRows:
    """Rows by their row id.

    Args:
        seq: the change that the catalog is at.
        memory: bytes that they may use, about.
    """

    def __init__(self, seq: int, memory: int) -> None:
        self.seq = seq
        self._most = memory // 2
        self._lock = threading.Lock()
        self._new: dict[int, tuple[str, str]] = {}  # id and JSON; full at half of the memory, and becomes the old ones
        self._old: dict[int, tuple[str, str]] = {}
        self._parsed: dict[str, dict[str, Any]] = {}  # metadata without lists and objects by their JSON, once found
        self._used = 0

    def advance(self, seq: int, changed: Iterable[int]) -> None:
        """Forget rows that a commit edits or deletes."""
        with self._lock:
            self.seq = seq
            for rid in changed:
                self._new.pop(rid, None)
                self._old.pop(rid, None)

    def restart(self, seq: int) -> None:
        """Forget all rows."""
        with self._lock:
            self.seq = seq
            self._new, self._old, self._parsed, self._used = {}, {}, {}, 0

    def find(self, at: int, rids: Iterable[int]) -> dict[int, Matched]:
        """Return those of the rows that are known, without vectors; none if the catalog is not at change `at`."""
        new, old = self._new, self._old
        found: dict[int, Matched] = {}
        for rid in rids:
            row = new.get(rid) or old.get(rid)
            if row is not None:
                id, text = row
                found[rid] = id, self._metadata(text), text, None
        return found if self.seq == at else {}  # last: `advance` may have come in between

    def _metadata(self, text: str) -> dict[str, Any]:
        """Return metadata that belong to the caller."""
        known = self._parsed.get(text)
        if known is not None:
            return known.copy()
        made = json.loads(text)
        if not any(type(value) in (list, dict) for value in made.values()):
            self._parsed[text] = made.copy()
        return made

    def add(self, at: int, rows: Mapping[int, Matched]) -> None:
        """Remember rows of the catalog at change `at`, by row id."""
        kept = {rid: (row[0], row[2]) for rid, row in rows.items()}
        used = ROW_BYTES * len(kept) + TEXT_FACTOR * sum([len(text) for _, text in kept.values()])
        with self._lock:
            if self.seq != at:
                return
            self._new |= kept
            self._used += used
            if self._used > self._most:
                self._old, self._new, self._parsed, self._used = self._new, {}, {}, 0
