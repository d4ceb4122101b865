"""/api/v1/collections/{name}/changes: the log of changes of a collection, with long poll."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import Field

from nnclr_hub.errors import AnswerTooLarge, ChangesUnavailable, CollectionNotFound, InvalidRequest
from nnclr_hub.store.checks import MAX_LIMIT

from ..answers import PartsResponse, encoded
from ..keys import READ
from ..limits import Budget, in_thread_while_connected
from ..problems import answers
from ..security.access import requires
from .bodies import Strict
from .dependencies import AppAnswers, AppWorkbench

MAX_WAIT = 30.0  # seconds; clients and proxies close connections that are silent for a minute
WAIT_SHARE = 0.8  # of the deadline of a request
POLL_SECONDS = 0.1
POLLS_PER_SECOND = 200  # of all waiting clients together: more clients wait longer between their polls

router = APIRouter(prefix="/api/v1/collections", tags=["collections"])


class ChangeResponse(Strict):
    """One change of an item; GET items/{id} returns its content."""

    seq: int = Field(description="number of the change")
    op: Literal["upsert", "delete"]
    id: str
    commit: int = Field(description="number of the last change of the same commit; a request is always in one commit")
    at: float = Field(description="time of the commit, seconds since 1970")


class ChangesResponse(Strict):
    """Part of the log of changes."""

    changes: list[ChangeResponse]
    next: int = Field(description="pass it as `since` to continue")
    last: int = Field(description="number of the collection's last change")
    log: str = Field("", description="the log that the numbers belong to; pass it with `since`")


@router.get(
    "/{name}/changes",
    response_model=ChangesResponse,
    responses=answers(CollectionNotFound, ChangesUnavailable, InvalidRequest, AnswerTooLarge),
)
@requires(READ)
async def changes(
    request: Request,
    name: str,
    bench: AppWorkbench,
    limits: AppAnswers,
    since: Annotated[int, Query(ge=0, description="number of the last change that is known; 0: from the first")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 1000,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for a change")] = 0.0,
    log: Annotated[str | None, Query(max_length=64, description="`log` of the answer that `since` is from")] = None,
) -> Response:
    """List what changed after a change, in order; with `wait`, wait for the next one (long poll).

    410 if the log does not reach back to `since`, or is not `log`: read all items, then continue after `last`.
    """
    budget: Budget = request.state.budget

    def has_changes() -> bool:
        return bench.collection(name).changes(since, 1, log=log).next > since

    def answer() -> Response:
        encoder = limits.open(budget)
        page = bench.collection(name).changes(since, limit, log=log)
        parts = [b'{"changes":', *encoder.list(vars(one) for one in page.changes)]
        for field in ("next", "last", "log"):
            parts.append(b',"%b":%b' % (field.encode(), encoded(getattr(page, field))))
        return PartsResponse([*parts, b"}"])

    until = time.monotonic() + min(wait, WAIT_SHARE * budget.seconds)
    waiting: set[object] = request.app.state.waiting_for_changes
    waiting.add(budget)
    try:
        # neither a thread nor a permit is held while it waits
        while (left := until - time.monotonic()) > 0 and not await run_in_threadpool(has_changes):
            if await request.is_disconnected():
                break
            await asyncio.sleep(min(max(POLL_SECONDS, len(waiting) / POLLS_PER_SECOND), left))
    finally:
        waiting.discard(budget)
    return await in_thread_while_connected(request, answer, request.app.state.search_threads)
