"""Answers of a server to the library's own errors."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from nnclr_hub.client.steps import Answer
from nnclr_hub.errors import (
    BY_CODE,
    NNCLRHubError,
    Overloaded,
    RequestTooLarge,
    ServerUnreachable,
    ServiceError,
)

JSON_KINDS = ("application/json", "application/problem+json")


def error_of(answer: Answer) -> NNCLRHubError:
    """The error that an answer tells of: the class of its `code`, with the server's sentence."""
    body = _problem(answer)
    if body is None:
        return _stranger(answer)
    return make_error(str(body["code"]), str(body["detail"]), retry_after(answer))


def make_error(code: str, detail: str, wait: float | None = None) -> NNCLRHubError:
    """An error of the class of that code; ServiceError if no class has it."""
    kind = BY_CODE.get(code, ServiceError)
    return kind(detail, wait or 1.0) if issubclass(kind, Overloaded) else kind(detail)


def retry_after(answer: Answer) -> float | None:
    """Seconds after which the server wants to be asked again, which proxies may say as a date; None if it does not."""
    text = answer.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one that does not say of which clock
        return None


def failures(answer: Answer) -> dict[int, NNCLRHubError]:
    """What is wrong with single parts of a request, by their number; {} if an answer does not tell."""
    body = _problem(answer)
    parts = body.get("errors", []) if body else []
    told = [part for part in parts if isinstance(part, dict) and {"index", "code", "detail"} <= part.keys()]
    return {int(part["index"]): make_error(part["code"], part["detail"]) for part in told}


def _problem(answer: Answer) -> dict[str, Any] | None:
    """An answer's problem, whichever envelope it wears; None if it is not our server's."""
    if answer.headers.get("content-type", "").split(";")[0] not in JSON_KINDS:
        return None
    body = answer.json()
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        body = {**body["error"], "detail": body["error"].get("message")}
    return body if isinstance(body, dict) and {"code", "detail"} <= body.keys() else None


def _stranger(answer: Answer) -> NNCLRHubError:
    """An error that something else than our server answered with: a proxy before it, or another program."""
    if answer.status == 413:
        return RequestTooLarge(f"{answer.url} does not let so large a request pass: send fewer images at once.")
    if answer.status == 429:
        return Overloaded(f"{answer.url} takes no more requests for the moment.", retry_after(answer) or 1.0)
    kind = answer.headers.get("content-type", "no content")
    # a proxy says so while the server behind it restarts
    passing = answer.status in (502, 503, 504)
    return (ServerUnreachable if passing else ServiceError)(
        f"{answer.url} answers {answer.status} with {kind}, which is not what `nnclr serve` says: check the address, "
        "and what stands between."
    )
