"""Turn error responses of a server into the library's exceptions."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from nnclr_hub.client.steps import Answer
from nnclr_hub.errors import (
    BY_CODE,
    MetadataConflict,
    NNCLRHubError,
    Overloaded,
    RequestTooLarge,
    ServerUnreachable,
    ServiceError,
)

JSON_KINDS = ("application/json", "application/problem+json")


def error_of(answer: Answer) -> NNCLRHubError:
    """Return the error of an answer: the class of its `code`, with the server's message."""
    body = _problem(answer)
    if body is None:
        return _foreign_error(answer)
    error = make_error(str(body["code"]), str(body["detail"]), retry_after(answer))
    if isinstance(error, MetadataConflict):
        error.conflicts = {part["id"]: part["metadata"] for part in body.get("errors", [])}
    return error


def make_error(code: str, detail: str, wait: float | None = None) -> NNCLRHubError:
    """Return an error of the class with that code; ServiceError if no class has it."""
    kind = BY_CODE.get(code, ServiceError)
    return kind(detail, wait or 1.0) if issubclass(kind, Overloaded) else kind(detail)


def retry_after(answer: Answer) -> float | None:
    """Return the seconds of the Retry-After header, which proxies may send as a date; None without one."""
    text = answer.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # not a date, or one without a time zone
        return None


def failures(answer: Answer) -> dict[int, NNCLRHubError]:
    """Return the errors of single parts of a request by position; {} if the answer reports none."""
    body = _problem(answer)
    parts = body.get("errors", []) if body else []
    complete = [part for part in parts if isinstance(part, dict) and {"index", "code", "detail"} <= part.keys()]
    return {int(part["index"]): make_error(part["code"], part["detail"]) for part in complete}


def _problem(answer: Answer) -> dict[str, Any] | None:
    """Return the problem in an answer, in either envelope; None if it does not come from `nnclr serve`."""
    if answer.headers.get("content-type", "").split(";")[0] not in JSON_KINDS:
        return None
    body = answer.json()
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = {**body["error"], "detail": body["error"].get("message")}
    return body if isinstance(body, dict) and {"code", "detail"} <= body.keys() else None


def _foreign_error(answer: Answer) -> NNCLRHubError:
    """Return the error for an answer that does not come from `nnclr serve`: from a proxy, or another program."""
    if answer.status == 413:
        return RequestTooLarge(f"{answer.url} rejects a request of this size; send fewer images at once.")
    if answer.status == 429:
        return Overloaded(f"{answer.url} accepts no more requests at the moment.", retry_after(answer) or 1.0)
    kind = answer.headers.get("content-type", "no content")
    # what a proxy answers while the server behind it restarts
    restarting = answer.status in (502, 503, 504)
    return (ServerUnreachable if restarting else ServiceError)(
        f"{answer.url} answers {answer.status} with {kind}, which does not come from `nnclr serve`; check the address, "
        "and proxies before the server."
    )
