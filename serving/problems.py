"""Errors in responses: RFC 9457 problems, and the envelope of OpenAI under /v1.

    raise CollectionNotFound("There is no collection 'x'; ...")     # in a route or anything it calls

becomes 404 with the code collection_not_found. The OpenAPI description lists the errors of each route from the tables
in this module.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from nnclr_hub import errors
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.workbench.privacy import without_paths

from .telemetry import current

log = logging.getLogger(__name__)
T = TypeVar("T")
PROBLEM = "application/problem+json"
MAX_CONFLICTS = 1000  # items of one answer
DISK_FULL = "The disk of the server is full and nothing was written; the operator must free space."
STORE_FAILED = "The store of the server failed; the reason is in the log of the server."

# the codes of each HTTP status; other classes of the library have the status of their nearest ancestor
STATUS = {
    403: "read_only",
    404: "unknown_model collection_not_found item_not_found probe_not_found inspection_not_found job_not_found "
    "run_not_found",
    408: "request_too_slow",
    409: "collection_exists probe_exists metadata_conflict fingerprint_mismatch",
    410: "changes_unavailable",
    413: "image_too_large request_too_large",
    415: "unsupported_image",
    422: "invalid_request undecodable_image",
    429: "overloaded",
    500: "error store_error service_error",
    501: "missing_dependency",
    503: "model_error store_read_only store_unreachable store_corrupt not_ready",
    504: "deadline_exceeded",
    507: "disk_full",
}
# errors of HTTP itself, which have no class in the library
HTTP = {
    "malformed": (400, "The body is not valid JSON or not a valid form, or it is truncated."),
    "unauthorized": (401, "The API key is missing or wrong."),
    "forbidden": (403, "The API key has no permission for this request."),
    "host_not_allowed": (403, "The Host header is not an allowed name of this server."),
    "origin_not_allowed": (403, "A web page of another origin may not send this request."),
    "not_found": (404, "This path does not exist."),
    "method_not_allowed": (405, "The path does not support this method; see the Allow header."),
    "unsupported_media_type": (415, "The path does not support the media type of the body."),
    "unsupported_encoding": (415, "The body is compressed; send it uncompressed."),
    "internal": (500, "The server failed; the reason is in its log."),
}
# of every route, because access control and limits come first
ANYWHERE = (
    "malformed unauthorized forbidden host_not_allowed origin_not_allowed internal invalid_request "
    "unsupported_encoding request_too_large request_too_slow deadline_exceeded overloaded not_ready"
)
UNREADABLE = "undecodable_image unsupported_image image_too_large"  # codes of routes that read images


def _classes(base: type[NNCLRHubError]) -> dict[str, type[NNCLRHubError]]:
    found = {base.code: base}
    for kind in base.__subclasses__():
        found = {**_classes(kind), **found}
    return found


CLASSES = _classes(NNCLRHubError)
_STATUS = {CLASSES[code]: status for status, codes in STATUS.items() for code in codes.split()}


@dataclass(frozen=True)
class ProblemKind:
    """One kind of error response: the status, the stable code, and what it means."""

    status: int
    code: str
    meaning: str


@cache
def problem_kind(kind: str | type[NNCLRHubError]) -> ProblemKind:
    """Return the kind of a code, or of an error class.

    Raises:
        KeyError: nothing has this code.
    """
    if isinstance(kind, str) and kind in HTTP:
        return ProblemKind(HTTP[kind][0], kind, HTTP[kind][1])
    found = CLASSES[kind] if isinstance(kind, str) else kind
    status = next(_STATUS[one] for one in found.__mro__ if one in _STATUS)
    sentence = (found.__doc__ or "").split("\n")[0].removeprefix("Raised when ")
    return ProblemKind(status, found.code, sentence[:1].upper() + sentence[1:])


class Refused(NNCLRHubError):
    """Raised for an error that has no class in the library.

    Args:
        code: of HTTP, or of a class.
        headers: additional headers of the response.
        status: status of the response; None: that of the code.
        items: errors of single parts of the request.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        *,
        status: int | None = None,
        items: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code  # type: ignore[misc]
        self.headers, self.items = headers or {}, items
        self.status = status or problem_kind(code).status


class InvalidInput(NNCLRHubError):
    """Raised for one parameter of a request to /v1, such as input[3]. The envelope of OpenAI names it."""

    def __init__(self, param: str, reason: NNCLRHubError) -> None:
        super().__init__(f"{param}: {reason}")
        self.param = param
        self.reason = reason


def status_of(error: NNCLRHubError) -> int:
    """Return the HTTP status of an error."""
    return error.status if isinstance(error, Refused) else problem_kind(type(error)).status


def describe_errors(codes: str, *, openai: bool = False) -> dict[int | str, dict[str, Any]]:
    """Describe the error responses of a route for OpenAPI: the given ones, and those of every route.

    Args:
        codes: separated by spaces.
        openai: whether the route is under /v1, with the error envelope of OpenAI.
    """
    by_status: dict[int, list[ProblemKind]] = {}
    for code in dict.fromkeys(f"{ANYWHERE} {codes}".split()):
        kind = problem_kind(code)
        by_status.setdefault(400 if openai and kind.status in (415, 422) else kind.status, []).append(kind)
    schema = {"$ref": f"#/components/schemas/{'OpenAIError' if openai else 'Problem'}"}
    content = {"application/json" if openai else PROBLEM: {"schema": schema}}
    found: dict[int | str, dict[str, Any]] = {}
    for status, kinds in sorted(by_status.items()):
        listed = "\n".join(f"- `{one.code}`: {one.meaning}" for one in kinds)
        found[status] = {"description": f"{HTTPStatus(status).phrase}\n\n{listed}", "content": content}
    found[429]["headers"] = {"Retry-After": {"description": "seconds to wait", "schema": {"type": "integer"}}}
    return found


class _SafeJSON(JSONResponse):
    """JSON that replaces lone surrogates, which a client may have sent and UTF-8 cannot encode, by `?`."""

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
    """Return an error response, in the envelope of the path.

    Args:
        code: stable name of the error.
        detail: message for a person.
        items: errors of single parts of the request.
        param: the parameter at fault, for the envelope of OpenAI.
    """
    id = ""
    if (timings := current.get()) is not None:
        timings.refusal, id = code, timings.id
    if path.startswith("/v1/"):
        status = 400 if status in (415, 422) else status  # the OpenAI API uses neither
        kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
        body: dict[str, Any] = {"error": {"message": detail, "type": kind, "param": param, "code": code}}
        return _SafeJSON(body, status, headers=headers)
    instance = quote(path, errors="replace") + (f"#{id}" if id else "")
    body = {"type": f"urn:nnclr-hub:{code}", "title": code.replace("_", " ").capitalize(), "status": status}
    body |= {"detail": detail, "instance": instance, "code": code}
    if items:
        body["errors"] = items
    return _SafeJSON(body, status, headers=headers, media_type=PROBLEM)


def error_response(path: str, error: NNCLRHubError) -> JSONResponse:
    """Return the response for an error of the library."""
    param, text = None, str(error)
    if isinstance(error, InvalidInput):
        param, error = error.param, error.reason
    status = status_of(error)
    if isinstance(error, errors.StoreError) and status >= 500:
        log.error("%s: %s", path, text)  # the message may name files, and only the operator can act on it
        text = DISK_FULL if isinstance(error, errors.DiskFull) else STORE_FAILED
    headers, items = (error.headers, error.items) if isinstance(error, Refused) else (None, None)
    if isinstance(error, errors.Overloaded):
        headers = {"Retry-After": str(max(1, round(error.retry_after)))}
    if isinstance(error, errors.MetadataConflict):
        items = [{"id": id, "metadata": values} for id, values in islice(error.conflicts.items(), MAX_CONFLICTS)]
    return problem(path, status, error.code, without_paths(text), items=items, headers=headers, param=param)


def outcomes(
    results: Sequence[T | NNCLRHubError],
    about: Sequence[dict[str, Any]],
    value: Callable[[T], dict[str, Any]],
    what: str,
    *,
    code: str = "",
    all_needed: bool = False,
) -> list[dict[str, Any]]:
    """Return one entry for each part of a request: its value, or its error.

    Args:
        results: results of the parts.
        about: further fields of each entry.
        value: returns the fields of a result.
        what: happened to the parts, for the message.
        code: code of the refusal; "": that of the first error.
        all_needed: whether one error is enough to refuse the request.

    Raises:
        Refused: no part has a value.
    """
    entries: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    for index, (result, own) in enumerate(zip(results, about, strict=True)):
        entry = {"index": index, **own}
        if isinstance(result, NNCLRHubError):
            error = {"code": result.code, "detail": without_paths(str(result))}
            broken.append({**entry, **error})
            entries.append({**entry, "error": error})
        else:
            entries.append({**entry, **value(result)})
    if broken and (all_needed or len(broken) == len(entries)):
        detail = f"{len(broken)} of {len(entries)} {what}; first error: {broken[0]['detail']}"
        raise Refused(code or str(broken[0]["code"]), detail, status=422, items=broken)
    return entries


def install(app: FastAPI) -> None:
    """Make the app return every error in this form."""

    # asynchronous, because FastAPI runs other handlers in threads
    @app.exception_handler(NNCLRHubError)
    async def of_library(request: Request, error: NNCLRHubError) -> JSONResponse:
        answer = error_response(request.url.path, error)
        if answer.status_code == 500:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer

    @app.exception_handler(RequestValidationError)
    async def of_validation(request: Request, error: RequestValidationError) -> JSONResponse:
        path, parts = request.url.path, error.errors()
        if broken := next((part for part in parts if part["type"] == "json_invalid"), None):
            place = broken["loc"][0]  # the body, or a field of a form
            what = "body" if place == "body" else f"field {place}"
            return problem(path, 400, "malformed", f"The {what} is not valid JSON.")
        items = [
            {"loc": ".".join(map(str, part["loc"])), "msg": part["msg"].removeprefix("Value error, ")} for part in parts
        ]
        detail = "; ".join(f"{one['loc']}: {one['msg']}" for one in items[:5])
        param = items[0]["loc"].partition(".")[2] or None
        return problem(path, 422, "invalid_request", f"Invalid request: {detail}.", items=items, param=param)

    @app.exception_handler(HTTPException)
    async def of_starlette(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, NNCLRHubError):  # raised while the body was read, and wrapped by FastAPI
            return await of_library(request, error.__cause__)
        detail = f"{request.method} {request.url.path}: {error.detail.rstrip('.')}."
        headers = dict(error.headers or {})
        if error.status_code == 405:  # FastAPI lists the methods of one route; several routes may share the path
            template = getattr(request.scope.get("route"), "path", None)
            methods = request.app.openapi()["paths"].get(template, {})
            headers |= {"Allow": ", ".join(sorted(map(str.upper, methods)))} if methods else {}
        code = next((code for code, (status, _) in HTTP.items() if status == error.status_code), "http_error")
        return problem(request.url.path, error.status_code, code, detail, headers=headers)

    @app.exception_handler(ClientDisconnect)
    async def of_disconnect(request: Request, error: ClientDisconnect) -> Response:
        """Handle a client that disconnected while its body was read; this is not a failure of the server."""
        return Response(status_code=499)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(request.url.path, 500, "internal", HTTP["internal"][1])

    @app.exception_handler(ImportError)
    async def of_import(request: Request, error: ImportError) -> JSONResponse:
        """Handle the import of a package when it is first used, such as torch for attention maps."""
        missing = errors.missing_package(error)
        return await (unexpected(request, error) if missing is None else of_library(request, missing))
