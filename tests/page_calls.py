"""Calls to the endpoints of the page, as from a client other than the page."""

import secrets
from functools import partial
from typing import Any

import httpx

# with verify, each call first reads all root certificates, which takes longer than the request
get, post = (partial(method, verify=False, timeout=60) for method in (httpx.get, httpx.post))


def events(url: str, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Return what Gradio calls the dependencies: one entry per event."""
    return get(f"{url}/ui/config", headers=headers).json()["dependencies"]


def call(url: str, name: str, data: list[Any], headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """Call the event of a handler.

    Args:
        more: additional fields of the body, such as event_data.
    """
    event = next(one for one in events(url, headers) if one["api_name"] == name)
    body = {"data": data, "fn_index": event["id"], "session_hash": secrets.token_hex(4)} | more
    return post(f"{url}/ui/gradio_api/run/predict", json=body, headers=headers)
