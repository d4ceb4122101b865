"""Ids and metadata of the rows that searches returned recently, in step with the catalog.

The writer announces each commit before other reads can see it, and names the change before the index has it. A search
at a change finds rows here only while no later one was announced, so it never mixes two states of the catalog.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from nnclr_hub.store.embedded.rows import Matched

ROW_BYTES = 800  # of a row with short texts, about
TEXT_FACTOR = 16  # a text has up to 4 bytes per character, and 12 once it is parsed, if its keys and values are short
MOST_TEXT = 2048  # longer metadata are read from the catalog


class RecentRows:
    """Rows by their row id.

    Args:
        seq: the change that the catalog is at.
        memory: bytes that they may use, about.

    Attributes:
        seq: None while a commit is made.
    """

    def __init__(self, seq: int, memory: int) -> None:
        self.seq: int | None = seq
        self._most = memory // 2
        self._lock = threading.Lock()
        self._new: dict[int, tuple[str, str]] = {}  # id and JSON; full at half of the memory, and becomes the old ones
        self._old: dict[int, tuple[str, str]] = {}
        self._parsed: dict[str, dict[str, Any]] = {}  # metadata without lists and objects by their JSON, once found
        self._used = 0

    def advance(self, seq: int | None, changed: Iterable[int]) -> None:
        """Forget rows that a commit edits or deletes; with None, trust no rows until the next call."""
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
        kept = {rid: (row[0], row[2]) for rid, row in rows.items() if len(row[2]) <= MOST_TEXT}
        used = ROW_BYTES * len(kept) + TEXT_FACTOR * sum([len(text) for _, text in kept.values()])
        if used > self._most:
            return
        with self._lock:
            if self.seq != at:
                return
            if self._used + used > self._most:
                self._old, self._new, self._parsed, self._used = self._new, {}, {}, 0
            self._new |= kept
            self._used += used
