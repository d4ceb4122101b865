"""Outcome: what the work of a job came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nnclr_hub.store.records import Records


@dataclass(frozen=True)
class Outcome:
    """See the module.

    result: JSON, kept with the job.
    commit: keeps what the job made, in the same transaction as the note that it is done; may refuse.
    """

    result: Mapping[str, Any]
    commit: Callable[[Records], None] = lambda records: None
