"""A request that is not let in: what the guards return, None being "come in"."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Refusal:
    """The answer's status, stable code, sentence and further headers."""

    status: int
    code: str
    detail: str
    headers: dict[str, str] = field(default_factory=dict)
