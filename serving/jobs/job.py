"""Job: what is known of one piece of background work."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class Job:
    """A job at one moment.

    id: later jobs have greater ones.
    kind: see `kinds`; params: what it was asked for, as JSON.
    mark: equal for requests that are the same, sent again; "" where nobody knows.
    done, total: progress, in units of the kind; total is 0 until it is known.
    created, started, ended: seconds since 1970; None: not yet.
    attempts: how often it was begun and neither ended nor was interrupted in an orderly way.
    begun: whether it ever was at work.
    notes: what its work keeps for when it is begun again, as JSON.
    cancelling: whether somebody wants it to end, until it has.
    result: what it came to, as JSON, once done.
    error: status, code and detail of the problem, once failed.
    changes: grows with everything that can be seen of the job.
    """

    id: str
    kind: str
    params: Mapping[str, Any]
    created: float
    mark: str = ""
    state: State = "queued"
    done: int = 0
    total: int = 0
    started: float | None = None
    ended: float | None = None
    attempts: int = 0
    begun: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)
    cancelling: bool = False
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    changes: int = 0

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def rate(self) -> float | None:
        """Units a second since it was begun; None where there is nothing to go by."""
        if self.started is None or not self.done:
            return None
        seconds = (self.ended or time.time()) - self.started
        return self.done / seconds if seconds > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds that are left at that rate, of a running job."""
        if self.state != "running" or not self.rate or not self.total:
            return None
        return max(0.0, (self.total - self.done) / self.rate)

    @classmethod
    def read(cls, content: Mapping[str, Any], result: bytes | None) -> Self:
        """What `written` gave, here or in a later version; without its result where that is not at hand."""
        known = {name: value for name, value in content.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, **({} if result is None else {"result": json.loads(result)})})

    def written(self) -> tuple[dict[str, Any], bytes | None]:
        """As JSON, and apart from it the result, which may be long and is seldom asked for."""
        without = ("result",) if self.notes else ("result", "notes")  # which versions before know nothing of
        content = {name: value for name, value in vars(self).items() if name not in without}
        return content, None if self.result is None else json.dumps(self.result).encode()
