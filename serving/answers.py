"""Answers whose size depends on the request: matches, items, predictions.

    answers.admit(budget, collection, queries=64, rows=64_000, with_vector=True)    # or 413, 429
    return PartsResponse([b'{"matches":', *answers.encoder().list(matches), b"}"])

The bytes of an answer are estimated before any work starts, from the size of a vector and that of the metadata of a
few items. They are counted again while the answer is encoded, because metadata differ. Encoding runs in the thread of
the search, in small steps: one call of the encoder keeps all other threads waiting, the event loop included.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from nnclr_hub.errors import AnswerTooLarge
from nnclr_hub.store.base import Collection
from nnclr_hub.store.cancellation import check_cancelled

from .deadline import Budget
from .engine.admission import Admission
from .responses import JSON, encoded
from .settings import Settings
from .telemetry import Metrics

NUMBER_BYTES = 13  # of a float32 as JSON, with its comma
ROW_BYTES = 100  # of the id, the score and the names of the fields
SAMPLED = 64  # items whose metadata are measured
KNOWN_S = 30.0  # how long the result is used
MAX_KNOWN = 1000  # collections whose result is kept
CHUNK = 256 << 10  # bytes that are sent at once


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
        self._metadata: dict[str, tuple[float, int]] = {}  # by collection: when it is outdated, and the mean bytes

    def admit(
        self, budget: Budget, collection: Collection, *, queries: int = 1, rows: int = 0, with_vector: bool = False
    ) -> None:
        """Take permits for a request that returns at most `rows` items, until it is over. Blocks.

        Raises:
            AnswerTooLarge: the answer would exceed the limit of one answer.
            Overloaded: too many searches or bytes are in progress.
        """
        vector = NUMBER_BYTES * collection.spec.dim if with_vector else 0
        self.admit_rows(budget, rows, ROW_BYTES + vector + (self._metadata_bytes(collection) if rows else 0), queries)

    def admit_rows(self, budget: Budget, rows: int, row_bytes: int, queries: int = 1) -> None:
        """Take permits for `rows` of so many bytes each; see `admit`."""
        if rows * row_bytes > self._limit:
            raise AnswerTooLarge(
                f"The answer would have about {rows * row_bytes / 1e6:,.0f} MB: {rows:,} rows of about "
                f"{row_bytes / 1e3:,.1f} kB. The limit is {self._limit / 1e6:,.0f} MB; request fewer rows, or leave "
                "out the vectors."
            )
        budget.hold(self._admission, queries, rows * row_bytes)

    def encoder(self) -> AnswerEncoder:
        """Return the encoder of one answer."""
        return AnswerEncoder(self._limit)

    def _metadata_bytes(self, collection: Collection) -> int:
        """Return the mean size of an item's metadata as JSON, measured on SAMPLED items every KNOWN_S seconds."""
        until, known = self._metadata.get(collection.name, (0.0, 0))
        if time.monotonic() > until:
            items = collection.scroll(limit=SAMPLED, with_vector=False).items
            known = sum(len(encoded(item.metadata)) for item in items) // max(1, len(items))
            if len(self._metadata) >= MAX_KNOWN:
                self._metadata.clear()
            self._metadata[collection.name] = time.monotonic() + KNOWN_S, known
        return known


class AnswerEncoder:
    """Encodes the parts of one answer, and counts their bytes.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0

    def list(self, values: Iterable[Any]) -> list[bytes]:
        """Return a list as JSON, in parts; each value is encoded alone.

        Raises:
            AnswerTooLarge: the answer exceeds the limit.
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
