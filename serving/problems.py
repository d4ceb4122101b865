"""Errors on the wire: RFC 9457 problems, and OpenAI's envelope below /v1."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from nnclr_hub import errors
from nnclr_hub.errors import NNCLRHubError

from .security.redaction import without_paths

log = logging.getLogger(__name__)

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
    errors.CollectionExists: 409,
    errors.FingerprintMismatch: 409,
    errors.StoreReadOnly: 503,
    errors.DiskFull: 507,
    errors.ServiceError: 500,
    errors.NotReady: 503,
    errors.Overloaded: 429,
    errors.DeadlineExceeded: 504,
    errors.RequestTooLarge: 413,
    errors.RequestTooSlow: 408,
}
_HTTP_CODES = {400: "malformed", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed"}


def status_of(error: NNCLRHubError) -> int:
    """The HTTP status of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem(
    path: str,
    status: int,
    code: str,
    detail: str,
    *,
    items: list[dict[str, Any]] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """The response for an error, in the envelope of the path.

    Args:
        path: of the request.
        status: HTTP status.
        code: stable name of the error.
        detail: the sentence for a person.
        items: errors of single parts of the request.
        headers: further headers.
    """
    detail = without_paths(detail)
    if path.startswith("/v1/"):
        kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
        body: dict[str, Any] = {"error": {"message": detail, "type": kind, "param": None, "code": code}}
        return JSONResponse(body, status, headers=headers)
    body = {"type": f"urn:nnclr-hub:{code}", "title": code.replace("_", " ").capitalize(), "status": status}
    body |= {"detail": detail, "instance": path, "code": code}
    if items:
        body["errors"] = items
    return JSONResponse(body, status, headers=headers, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Makes the app answer every error in our form."""

    async def ours(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, NNCLRHubError)
        status = status_of(error)
        if status == 500:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        headers = (
            {"Retry-After": str(max(1, round(error.retry_after)))} if isinstance(error, errors.Overloaded) else None
        )
        return problem(request.url.path, status, error.code, str(error), headers=headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        parts = error.errors()
        if any(part["type"] == "json_invalid" for part in parts):
            return problem(request.url.path, 400, "malformed", "The body is not valid JSON.")
        items = [{"loc": ".".join(map(str, part["loc"])), "msg": part["msg"]} for part in parts]
        detail = "; ".join(f"{item['loc']}: {item['msg']}" for item in items[:5])
        return problem(
            request.url.path, 422, "invalid_request", f"The request is not as it must be: {detail}.", items=items
        )

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, NNCLRHubError):  # raised while the body was read, and wrapped by the framework
            return await ours(request, error.__cause__)
        code = _HTTP_CODES.get(error.status_code, "http_error")
        detail = f"{request.method} {request.url.path}: {error.detail.rstrip('.')}."
        return problem(request.url.path, error.status_code, code, detail, headers=dict(error.headers or {}))

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(request.url.path, 500, "internal", "The server failed on this request; its log says why.")

    app.add_exception_handler(NNCLRHubError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, unexpected)


async def _gone(request: Request, error: Exception) -> Response:
    """The client went away while its body was read: no failure of the server's, and nobody hears the answer."""
    return Response(status_code=499)
