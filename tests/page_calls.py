"""The page's endpoints, called as by a client that ignores the page."""

import secrets
from typing import Any

import httpx


def events(url: str, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """What Gradio calls the dependencies: one entry an event."""
    return httpx.get(f"{url}/ui/config", headers=headers, timeout=60).json()["dependencies"]


def call(url: str, name: str, data: list[Any], headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    """What the event of that handler answers.

    Args:
        more: further fields of the body, such as event_data.
    """
    event = next(one for one in events(url, headers) if one["api_name"] == name)
    body = {"data": data, "fn_index": event["id"], "session_hash": secrets.token_hex(4)} | more
    return httpx.post(f"{url}/ui/gradio_api/run/predict", json=body, headers=headers, timeout=60)
