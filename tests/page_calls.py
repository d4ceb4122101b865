"""The page's endpoints, called as by a client that ignores the page."""

import secrets
from functools import partial
from typing import Any

import httpx

# without verify they read the certificates of all authorities first, each time, which takes longer than the answer
get, post = (partial(method, verify=False, timeout=60) for method in (httpx.get, httpx.post))


def events(url: str, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """What Gradio calls the dependencies: one entry an event."""
    return get(f"{url}/ui/config", headers=headers).json()["dependencies"]


def call(url: str, name: str, data: list[Any], headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """What the event of that handler answers.

    Args:
        more: further fields of the body, such as event_data.
    """
    event = next(one for one in events(url, headers) if one["api_name"] == name)
    body = {"data": data, "fn_index": event["id"], "session_hash": secrets.token_hex(4)} | more
    return post(f"{url}/ui/gradio_api/run/predict", json=body, headers=headers)
