"""Answers: vectors as fast JSON, NumPy files or raw bytes, and answers whose size depends on the request.

    answer = answers.open(queries=64)       # or 429
    return PartsResponse([b'{"matches":', *answer.list(matches), b"}"])

The bytes of an answer are counted while it is encoded, each against the limit of one answer (413) and that of all
answers in progress (429). Encoding runs in the thread of the search, in small steps: one call of the encoder keeps all
other threads waiting, the event loop included.
"""

from __future__ import annotations

import io
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import orjson
from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from nnclr_hub.errors import AnswerTooLarge
from nnclr_hub.store.cancellation import check_cancelled
from nnclr_hub.workbench.privacy import INDEXED, ROOT

from .limits import Admission, Budget, current_budget
from .settings import Settings
from .telemetry import Metrics

NPY = "application/x-npy"
BYTES = "application/octet-stream"
JSON = "application/json"
PNG = "image/png"
DType = Literal["float32", "float16"]
NUMBER_BYTES = 13  # bytes of a float32 as JSON, with its comma
FOR_THE_REST = "To read the rest, narrow the request with a filter, or run `nnclr` on the machine with the store."
MANY = list | tuple | dict  # values of a result that can be cut
CHUNK = 256 << 10  # bytes that are sent at once, and for which permits are taken at once


def encoded(value: Any) -> bytes:
    """Return JSON; NumPy arrays become lists, written with the digits of float32."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


class Answers:
    """Limits the bytes of each answer, and the searches and bytes of all answers in progress.

    Args:
        settings: answer_bytes, answers_bytes, search_capacity.
        metrics: counts searches and bytes.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._limit = settings.answer_bytes
        size = max(settings.answers_bytes, settings.answer_bytes)
        gauges = metrics.searches_in_work, metrics.answer_bytes_in_work
        self._admission = Admission(settings.search_capacity, size, metrics, "queries", gauges)

    def open(self, queries: int = 1) -> AnswerEncoder:
        """Take permits for the queries of the current request until it is over, and return the encoder of its answer.

        Raises:
            Overloaded: too many searches are in progress.
        """
        budget = current_budget()
        if queries:
            budget.hold(self._admission, queries, 0)
        return AnswerEncoder(self._admission, budget, self._limit)


def bounded(value: Mapping[str, Any], most: int) -> tuple[bytes, str]:
    """Return an object as JSON of at most `most` bytes, and what is left out of it; "" for nothing.

    The last entries of its largest lists and objects are left out, and a text that is too long.
    """
    try:
        entries = {name: _entries(one, most) for name, one in value.items()}
    except TypeError:  # names of broken files may not be UTF-8
        plain = lambda one: dict(one) if isinstance(one, Mapping) else one.tolist()  # noqa: E731
        in_utf8 = json.dumps(value, ensure_ascii=False, default=plain).encode("utf-8", "replace")
        entries = {name: _entries(one, most) for name, one in json.loads(in_utf8).items()}
    room = most - 2 - sum(len(encoded(name)) + 4 for name in value)  # bytes left after an object of empty lists
    parts: dict[str, bytes] = {}
    left_out: list[str] = []
    sizes = {name: sum(map(len, several)) + len(several) for name, several in entries.items()}
    for name in sorted(value, key=sizes.__getitem__):
        one, several = value[name], entries[name]
        if not isinstance(one, MANY):
            if sizes[name] > room:
                left_out.append(f"`{name}`")
            parts[name] = several[0] if sizes[name] <= room else b"null"
        else:
            fitting = bisect_right(list(accumulate(len(entry) + 1 for entry in several)), room)
            if fitting < len(one):
                left_out.append(f"{len(one) - fitting:,} of the {len(one):,} entries of `{name}`")
            parts[name] = (b"{%s}" if isinstance(one, dict) else b"[%s]") % b",".join(several[:fitting])
        room -= len(parts[name])
    body = b",".join(encoded(name) + b":" + parts[name] for name in value)
    why = f" left out, because an answer has at most {most / 1e6:,.1f} MB. {FOR_THE_REST}"
    return b"{%s}" % body, " and ".join(left_out) + " are" + why if left_out else ""


def _entries(value: Any, most: int) -> list[bytes]:
    """Return the JSON of the first entries of a list or object, up to the one that exceeds `most` bytes; or its own."""
    if not isinstance(value, MANY):
        return [encoded(value)]
    entries, size = list[bytes](), 0
    for entry in value.items() if isinstance(value, dict) else value:
        whole = dict([entry]) if isinstance(value, dict) else entry
        text = orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        entries.append(text[1:-1] if isinstance(value, dict) else text)
        size += len(entries[-1]) + 1
        if size > most:
            break
    return entries


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
            parts.append(self.count((b"," if parts else b"[") + encoded(value)))
        return [*parts, b"]"] if parts else [b"[]"]

    def count(self, part: bytes) -> bytes:
        """Return a part of the answer that is encoded already, and take permits for it; see `list` for errors."""
        self._size += len(part)
        if self._size > self._limit:
            raise AnswerTooLarge(
                f"The answer has more than {self._limit / 1e6:,.0f} MB, which is the limit; request fewer rows, or "
                "leave out the vectors."
            )
        while self._size > self._held:
            self._budget.hold(self._admission, 0, CHUNK)
            self._held += CHUNK
        return part


class PartsResponse(Response):
    """JSON in parts, which are sent in chunks."""

    media_type = JSON

    def __init__(self, parts: Sequence[bytes], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(headers={"Content-Length": str(sum(map(len, parts))), **(headers or {})})
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


def array_response(vectors: np.ndarray, kind: str, dtype: DType = "float32") -> Response:
    """Return vectors (N, D) as a NumPy file, or as raw little-endian numbers with the shape in a header."""
    rows = np.ascontiguousarray(vectors, {"float32": "<f4", "float16": "<f2"}[dtype])
    headers = {"X-Shape": ",".join(map(str, rows.shape)), "X-DType": dtype, "Vary": "Accept"}
    if kind == BYTES:
        return Response(rows.tobytes(), media_type=BYTES, headers=headers)
    file = io.BytesIO()
    np.save(file, rows)
    return Response(file.getvalue(), media_type=NPY, headers=headers)


def wanted(request: Request, *kinds: str) -> str:
    """Return the media type among JSON and `kinds` that the Accept header prefers; JSON if it accepts none."""
    return _preferred(request.headers.get("accept", "")[:1000], kinds)


@lru_cache(64)  # clients send few different headers
def _preferred(accept: str, kinds: tuple[str, ...]) -> str:
    """Return the type of the highest quality that the header names, the first of equals. Wildcards mean JSON."""
    best, quality = JSON, 0.0
    for part in accept.lower().split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        text = next((one[2:] for one in parameters if one.startswith("q=")), "1")
        found = float(text) if re.fullmatch(r"0(\.\d*)?|1(\.0*)?", text) else 1.0
        name = JSON if name in ("*/*", "application/*") else name
        if name in (JSON, *kinds) and found > quality:
            best, quality = name, found
    return best


def public_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item's metadata, with only the name of a folder that was indexed on this machine."""
    shown = dict(metadata)
    if shown.keys() >= INDEXED and isinstance(shown[ROOT], str):
        shown[ROOT] = shown[ROOT].rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return shown
