"""Answers whose size depends on the request: matches, items, predictions.

    answer = answers.open(budget, queries=64)       # or 429
    return PartsResponse([b'{"matches":', *answer.list(matches), b"}"])

The bytes of an answer are counted while it is encoded, each against the limit of one answer (413) and that of all
answers in progress (429). Encoding runs in the thread of the search, in small steps: one call of the encoder keeps all
other threads waiting, the event loop included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from nnclr_hub.errors import AnswerTooLarge
from nnclr_hub.store.cancellation import check_cancelled

from .deadline import Budget
from .engine.admission import Admission
from .responses import JSON, encoded
from .settings import Settings
from .telemetry import Metrics

NUMBER_BYTES = 13  # of a float32 as JSON, with its comma
CHUNK = 256 << 10  # bytes that are sent at once, and for which permits are taken at once


class Answers:
    """Limits the bytes of each answer, and the searches and bytes of all answers in progress.

    Args:
        settings: answer_bytes, answers_bytes, search_capacity.
        metrics: counts searches and bytes.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._limit = settings.answer_bytes
        self._admission = Admission(
            settings.search_capacity,
            max(settings.answers_bytes, settings.answer_bytes),
            metrics,
            "queries",
            (metrics.searches_in_work, metrics.answer_bytes_in_work),
        )

    def open(self, budget: Budget, queries: int = 1) -> AnswerEncoder:
        """Take permits for the queries of a request until it is over, and return the encoder of its answer.

        Raises:
            Overloaded: too many searches are in progress.
        """
        if queries:
            budget.hold(self._admission, queries, 0)
        return AnswerEncoder(self._admission, budget, self._limit)


class AnswerEncoder:
    """Encodes the parts of one answer, and counts their bytes."""

    def __init__(self, admission: Admission, budget: Budget, limit: int) -> None:
        self._admission, self._budget, self._limit = admission, budget, limit
        self._size, self._held = 0, CHUNK  # most answers are smaller, and take no permits for their bytes

    def list(self, values: Iterable[Any]) -> list[bytes]:
        """Return a list as JSON, in parts; each value is encoded alone.

        Raises:
            AnswerTooLarge: the answer exceeds the limit.
            Overloaded: too many bytes of answers are in progress.
            DeadlineExceeded, ClientDisconnect: nobody waits for it any more.
        """
        parts = []
        for value in values:
            check_cancelled()
            parts.append((b"," if parts else b"[") + encoded(value))
            self._size += len(parts[-1])
            if self._size > self._limit:
                raise AnswerTooLarge(
                    f"The answer has more than {self._limit / 1e6:,.0f} MB, which is the limit; request fewer rows, or "
                    "leave out the vectors."
                )
            if self._size > self._held:
                self._budget.hold(self._admission, 0, CHUNK)
                self._held += CHUNK
        return [*parts, b"]"] if parts else [b"[]"]


class PartsResponse(Response):
    """JSON in parts, which are sent in chunks."""

    media_type = JSON

    def __init__(self, parts: Sequence[bytes]) -> None:
        super().__init__(headers={"Content-Length": str(sum(map(len, parts)))})
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        chunk: list[bytes] = []
        size = 0
        for part in self._parts:
            chunk.append(part)
            size += len(part)
            if size >= CHUNK:
                await send({"type": "http.response.body", "body": b"".join(chunk), "more_body": True})
                chunk, size = [], 0
        await send({"type": "http.response.body", "body": b"".join(chunk)})
