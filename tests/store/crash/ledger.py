"""What a loaded store said before it was killed, and what it must therefore hold."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

# version by id; None: deleted, or never there
Versions = dict[str, int | None]


@dataclass
class Ledger:
    """confirmed: what is acknowledged. unfinished: requests that were begun. seq: the highest that was reported."""

    confirmed: Versions = field(default_factory=dict)
    unfinished: dict[str, Versions] = field(default_factory=dict)
    seq: int = 0
    requests: int = 0

    def hear(self, lines: Iterable[str]) -> None:
        """Take down the lines of `store.crash.load`; a last one that the kill cut short was never said."""
        for line in lines:
            if not line.endswith("\n"):
                continue
            words = json.loads(line)
            if "begin" in words:
                self.unfinished[words["begin"]] = words["versions"]
            else:
                self.confirmed |= self.unfinished.pop(words["done"])
                self.seq = max(self.seq, words["seq"])
                self.requests += 1

    def settle(self, held: dict[str, int]) -> None:
        """Compare a reopened collection against the ledger; what was found counts as confirmed from now on.

        Raises:
            AssertionError: something acknowledged is missing or undone, or something is there that nobody sent.
        """
        for request, versions in self.unfinished.items():
            found = {id: held.get(id) for id in versions}
            before = {id: self.confirmed.get(id) for id in versions}
            assert found in (versions, before), f"request {request} is half done: {found}, before {before}"
            self.confirmed |= found
        self.unfinished.clear()
        wanted = {id: version for id, version in self.confirmed.items() if version is not None}
        missing = {id: version for id, version in wanted.items() if id not in held}
        assert not missing, f"acknowledged and missing: {missing}"
        extra = {id: version for id, version in held.items() if id not in wanted}
        assert not extra, f"deleted and back, or never sent: {extra}"
        undone = {id: (version, held[id]) for id, version in wanted.items() if held[id] != version}
        assert not undone, f"acknowledged and undone (acknowledged, found): {undone}"
