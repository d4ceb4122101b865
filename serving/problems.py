"""Errors on the wire: RFC 9457 problems, and OpenAI's envelope below /v1.

    raise CollectionNotFound("There is no collection 'x': ...")     # anywhere below a route

becomes 404 with the code collection_not_found. `REFUSALS` is the one table of all that a request can be refused with;
the description of the API is made from it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from nnclr_hub import errors
from nnclr_hub.errors import InvalidRequest, NNCLRHubError
from nnclr_hub.workbench.privacy import without_paths

from .telemetry import current, request_id
from .validation_errors import clauses

log = logging.getLogger(__name__)
PROBLEM = "application/problem+json"
FULL = "The server's disk is full, and nothing of this request was written: its operator has to make room."
FAILED_STORE = "The server's store cannot do this now: its operator has to look into it, and its log says why."

# the status of a class, or else that of its nearest ancestor here
STATUS: dict[type[NNCLRHubError], int] = {
    errors.NNCLRHubError: 500,
    errors.InvalidRequest: 422,
    errors.ImageError: 422,
    errors.UnsupportedImage: 415,
    errors.ImageTooLarge: 413,
    errors.ModelError: 503,
    errors.UnknownModel: 404,
    errors.StoreError: 500,
    errors.CollectionNotFound: 404,
    errors.ItemNotFound: 404,
    errors.ProbeNotFound: 404,
    errors.ProbeExists: 409,
    errors.JobNotFound: 404,
    errors.RunNotFound: 404,
    errors.CollectionExists: 409,
    errors.CollectionMoving: 409,
    errors.FingerprintMismatch: 409,
    errors.StoreReadOnly: 503,
    errors.OpenedForReading: 403,
    errors.StoreUnreachable: 503,
    errors.StoreCorrupt: 503,
    errors.DiskFull: 507,
    errors.ServiceError: 500,
    errors.NotReady: 503,
    errors.Overloaded: 429,
    errors.DeadlineExceeded: 504,
    errors.RequestTooLarge: 413,
    errors.RequestTooSlow: 408,
}


@dataclass(frozen=True)
class Refusal:
    """One way to say no: the status, the stable code, and what it means."""

    status: int
    code: str
    meaning: str


# what is refused before one of the library's errors can arise
REFUSALS: dict[str, Refusal] = {
    one.code: one
    for one in (
        Refusal(400, "malformed", "The body is no JSON or no form, or breaks off."),
        Refusal(401, "unauthorized", "A key is needed, and this is none."),
        Refusal(403, "forbidden", "The key may not do this."),
        Refusal(403, "host_not_allowed", "The Host header is none of this server's names."),
        Refusal(403, "origin_not_allowed", "A page of another origin may not write."),
        Refusal(404, "not_found", "There is nothing at this path."),
        Refusal(405, "method_not_allowed", "The path does not take this method; Allow names those that it takes."),
        Refusal(415, "unsupported_media_type", "The body is of a kind that the path does not take."),
        Refusal(415, "unsupported_encoding", "The body is compressed: send it as it is."),
        Refusal(429, "too_many_wrong_keys", "Too many wrong keys came from this address."),
        Refusal(409, "idempotency_in_flight", "The first request with this Idempotency-Key is still at work."),
        Refusal(422, "idempotency_mismatch", "The Idempotency-Key came with another request before."),
        Refusal(422, "idempotency_key_invalid", "The Idempotency-Key is not 1 to 255 visible characters of ASCII."),
        Refusal(503, "too_many_connections", "The server has as many connections as it takes."),
        Refusal(500, "internal", "The server failed; its log says why."),
    )
}
_HTTP_CODES = {one.status: code for code, one in reversed(REFUSALS.items())}
# every route stands behind the door, and may find the server busy
ANYWHERE: tuple[str | type[NNCLRHubError], ...] = (
    "malformed",
    "unauthorized",
    "forbidden",
    "host_not_allowed",
    "origin_not_allowed",
    "internal",
    InvalidRequest,
    "unsupported_encoding",
    "too_many_wrong_keys",
    "too_many_connections",
    errors.RequestTooLarge,
    errors.RequestTooSlow,
    errors.RateLimited,
    errors.Overloaded,
    errors.NotReady,
)


class InvalidInput(NNCLRHubError):
    """A refusal of one parameter of a request to /v1, which OpenAI's envelope names.

    Args:
        param: such as input[3].
        reason: gives the sentence, the code and the status.
    """

    def __init__(self, param: str, reason: NNCLRHubError) -> None:
        super().__init__(f"{param}: {reason}")
        self.param = param
        self.reason = reason


def status_of(error: NNCLRHubError) -> int:
    """The HTTP status of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def refusal_of(kind: str | type[NNCLRHubError]) -> Refusal:
    """The row of a code of REFUSALS, or of an error's class."""
    if isinstance(kind, str):
        return REFUSALS[kind]
    status = next(STATUS[one] for one in kind.__mro__ if one in STATUS)
    sentence = (kind.__doc__ or "").split("\n")[0].removeprefix("Raised when ")
    return Refusal(status, kind.code, sentence[:1].upper() + sentence[1:])


def answers(*kinds: str | type[NNCLRHubError], openai: bool = False) -> dict[int | str, dict[str, Any]]:
    """What a route can be refused with, for its description: these and what any route can be.

    Args:
        kinds: codes of REFUSALS, or classes of errors.
        openai: a route below /v1, whose refusals wear OpenAI's envelope.
    """
    by_status: dict[int, list[Refusal]] = {}
    for refusal in dict.fromkeys(refusal_of(kind) for kind in (*ANYWHERE, *kinds)):
        status = 400 if openai and refusal.status in (415, 422) else refusal.status
        by_status.setdefault(status, []).append(refusal)
    schema = {"$ref": f"#/components/schemas/{'OpenAIError' if openai else 'Problem'}"}
    content = {"application/json" if openai else PROBLEM: {"schema": schema}}
    found: dict[int | str, dict[str, Any]] = {}
    for status, refusals in sorted(by_status.items()):
        codes = "\n".join(f"- `{one.code}`: {one.meaning}" for one in refusals)
        found[status] = {"description": f"{HTTPStatus(status).phrase}\n\n{codes}", "content": content}
    found[429]["headers"] = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
    return found


class _Said(JSONResponse):
    """JSON that can be written whatever a client sent: half surrogates, which UTF-8 has none of, become `?`."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def problem(
    path: str,
    status: int,
    code: str,
    detail: str,
    *,
    items: list[dict[str, Any]] | None = None,
    headers: Mapping[str, str] | None = None,
    param: str | None = None,
) -> JSONResponse:
    """The response for an error, in the envelope of the path.

    Args:
        path: of the request.
        status: HTTP status.
        code: stable name of the error.
        detail: the sentence for a person.
        items: errors of single parts of the request.
        headers: further headers.
        param: what OpenAI's envelope names as the culprit.
    """
    timings = current.get()
    if timings is not None:
        timings.refusal = code
    if path.startswith("/v1/"):
        kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
        body: dict[str, Any] = {"error": {"message": detail, "type": kind, "param": param, "code": code}}
        return _Said(body, status, headers=headers)
    instance = quote(path, errors="replace") + (f"#{request_id.get()}" if request_id.get() else "")
    body = {"type": f"urn:nnclr-hub:{code}", "title": code.replace("_", " ").capitalize(), "status": status}
    body |= {"detail": detail, "instance": instance, "code": code}
    if items:
        body["errors"] = items
    return _Said(body, status, headers=headers, media_type=PROBLEM)


def install(app: FastAPI) -> None:
    """Makes the app answer every error in our form."""
    app.add_exception_handler(NNCLRHubError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, NNCLRHubError)
    answer = told(request.url.path, error)
    if answer.status_code == 500:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return answer


def told(path: str, error: NNCLRHubError) -> JSONResponse:
    """The response for one of the library's errors."""
    param, text = None, str(error)
    if isinstance(error, InvalidInput):
        param, error = error.param, error.reason
    status = status_of(error)
    if path.startswith("/v1/") and status in (415, 422):  # OpenAI knows neither
        status = 400
    if isinstance(error, errors.StoreError) and status >= 500:
        log.error("%s: %s", path, text)  # what to do about it is for who runs the server
        text = FULL if isinstance(error, errors.DiskFull) else FAILED_STORE
    headers = {"Retry-After": str(max(1, round(error.retry_after)))} if isinstance(error, errors.Overloaded) else None
    return problem(path, status, error.code, without_paths(text), headers=headers, param=param)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    path, parts = request.url.path, error.errors()
    if broken := next((part for part in parts if part["type"] == "json_invalid"), None):
        place = broken["loc"][0]  # the body, or one field of a form
        what = "body" if place == "body" else f"field {place}"
        return problem(path, 400, "malformed", f"The {what} is not valid JSON.")
    found = clauses(parts)
    detail = f"The request is not as it must be: {'; '.join(clause.text for clause in found[:5])}."
    if path.startswith("/v1/"):
        return problem(path, 400, "invalid_request", detail, param=found[0].name or None)
    items = [{"loc": clause.place, "msg": clause.text} for clause in found]
    return problem(path, 422, "invalid_request", detail, items=items)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, NNCLRHubError):  # raised while the body was read, and wrapped by the framework
        return await _ours(request, error.__cause__)
    status = error.status_code
    code = _HTTP_CODES.get(status, "http_error")
    if status == 415 and request.url.path.startswith("/v1/"):
        status = 400
    detail = f"{request.method} {request.url.path}: {error.detail.rstrip('.')}."
    headers = dict(error.headers or {})
    if status == 405:  # the framework names the methods of one route, where several have the path
        template = getattr(request.scope.get("route"), "path", None)
        methods = request.app.openapi()["paths"].get(template, {})
        headers |= {"Allow": ", ".join(sorted(map(str.upper, methods)))} if methods else {}
    return problem(request.url.path, status, code, detail, headers=headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem(request.url.path, 500, "internal", REFUSALS["internal"].meaning)


async def _gone(request: Request, error: Exception) -> Response:
    """The client went away while its body was read: no failure of the server's, and nobody hears the answer."""
    return Response(status_code=499)
