"""Responses: vectors as fast JSON, NumPy files or raw bytes; HEAD; and clients that disconnect.

VectorResponse({"embedding": vector})           # vector: (D,) float32, written with the digits of float32
array_response(vectors, "application/x-npy")    # (N, D)
vectors = await while_connected(request, model.embed_each_async(images))
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
import orjson
from anyio import CancelScope, CapacityLimiter, to_thread
from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from .deadline import Budget

NPY = "application/x-npy"
BYTES = "application/octet-stream"
JSON = "application/json"
PNG = "image/png"
DType = Literal["float32", "float16"]
T = TypeVar("T")
WATCH_AFTER_S = 0.05  # a request that is answered earlier does not pay for watching its connection


def encoded(value: Any) -> bytes:
    """Return JSON; NumPy arrays become lists, written with the digits of float32."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


class VectorResponse(JSONResponse):
    """JSON whose content may hold NumPy arrays in place of lists of numbers."""

    def render(self, content: Any) -> bytes:
        return encoded(content)


def wanted(request: Request, *kinds: str) -> str:
    """Return the media type among JSON and `kinds` that the Accept header prefers; JSON if it accepts none."""
    return _preferred(request.headers.get("accept", ""), kinds)


@lru_cache(64)  # clients send few different headers
def _preferred(accept: str, kinds: tuple[str, ...]) -> str:
    """Return the preferred media type.

    An exact type has precedence over `type/*`, and that over `*/*` (RFC 9110, section 12.5.1). Of equal qualities, the
    first named type wins, then JSON.
    """
    ranges: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        ranges.setdefault(name, _quality(parameters))
    order = [*(name for name in ranges if name in kinds or name == JSON), JSON, *kinds]

    def quality(kind: str) -> float:
        return next((ranges[one] for one in (kind, f"{kind.partition('/')[0]}/*", "*/*") if one in ranges), 0.0)

    best = max(order, key=quality)  # the first of equals
    return best if quality(best) > 0 else JSON


def _quality(parameters: list[str]) -> float:
    """Return the quality value in [0, 1]; 1 if it is missing or malformed."""
    text = next((one[2:] for one in parameters if one.startswith("q=")), "1")
    return float(text) if re.fullmatch(r"0(\.\d*)?|1(\.0*)?", text) else 1.0


def array_response(vectors: np.ndarray, kind: str, dtype: DType = "float32") -> Response:
    """Return vectors (N, D) as a NumPy file, or as raw little-endian numbers with the shape in a header."""
    rows = np.ascontiguousarray(vectors, {"float32": "<f4", "float16": "<f2"}[dtype])
    headers = {"X-Shape": ",".join(map(str, rows.shape)), "X-DType": dtype, "Vary": "Accept"}
    if kind == BYTES:
        return Response(rows.tobytes(), media_type=BYTES, headers=headers)
    file = io.BytesIO()
    np.save(file, rows)
    return Response(file.getvalue(), media_type=NPY, headers=headers)


async def while_connected(
    request: Request, work: Awaitable[T], stop: Callable[[], object] = lambda: None, after_s: float = WATCH_AFTER_S
) -> T:
    """Return the result of `work`; cancel it as soon as the client disconnects.

    Only for work that may be cancelled anywhere, after the whole body was read. Never for a write to the store.

    Args:
        stop: called as soon as the client disconnects.

    Raises:
        ClientDisconnect: the client has disconnected.
    """
    watching: list[asyncio.Task[None]] = []

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        stop()
        scope.cancel()

    # a request that is answered earlier does not pay for watching its connection
    timer = asyncio.get_running_loop().call_later(after_s, lambda: watching.append(asyncio.create_task(watch())))
    try:
        with CancelScope() as scope:
            return await work
        raise ClientDisconnect
    finally:
        timer.cancel()
        for task in watching:
            task.cancel()
            with CancelScope(shield=True):
                await asyncio.gather(task, return_exceptions=True)


async def in_thread_while_connected(
    request: Request, work: Callable[[], T], limiter: CapacityLimiter | None = None
) -> T:
    """Return the result of `work`, which runs in a thread.

    If the client disconnects, or the deadline passes, the thread stops at its next check (see `deadline.py`). This
    function waits for that, because only then its memory is free.

    Raises:
        ClientDisconnect: the client has disconnected.
        DeadlineExceeded: the deadline has passed.
    """
    budget: Budget = request.state.budget

    def checked() -> T:
        budget.check()  # it may have waited for the thread
        return work()

    return await while_connected(request, to_thread.run_sync(checked, limiter=limiter), budget.abandon)
