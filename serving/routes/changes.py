"""/api/v1/collections/{name}/changes: the log of changes of a collection, with long poll."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import Field

from nnclr_hub.errors import ChangesUnavailable, CollectionNotFound, InvalidRequest
from nnclr_hub.store.checks import MAX_LIMIT

from ..keys import READ
from ..problems import answers
from ..security.access import requires
from .bodies import Strict
from .dependencies import AppWorkbench

MAX_WAIT = 30.0  # seconds; clients and proxies close connections that are silent for a minute
POLL_SECONDS = 0.1

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


@router.get("/{name}/changes", responses=answers(CollectionNotFound, ChangesUnavailable, InvalidRequest))
@requires(READ)
async def changes(
    request: Request,
    name: str,
    bench: AppWorkbench,
    since: Annotated[int, Query(ge=0, description="number of the last change that is known; 0: from the first")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 1000,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for a change")] = 0.0,
    log: Annotated[str | None, Query(max_length=64, description="`log` of the answer that `since` is from")] = None,
) -> ChangesResponse:
    """List what changed after a change, in order; with `wait`, wait for the next one (long poll).

    410 if the log does not reach back to `since`, or is not `log`: read all items, then continue after `last`.
    """
    until = time.monotonic() + wait
    while True:
        # no thread is held while it waits
        page = await run_in_threadpool(lambda: bench.collection(name).changes(since, limit, log=log))
        if page.changes or time.monotonic() >= until or await request.is_disconnected():
            listed = [ChangeResponse(**vars(one)) for one in page.changes]
            return ChangesResponse(changes=listed, next=page.next, last=page.last, log=page.log)
        await asyncio.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
