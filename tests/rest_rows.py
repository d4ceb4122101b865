"""Tables of requests: for each request the bodies that it is sent with, and what a client gets for each.

    TABLE = {
        "GET c/none": [(None, 404, "collection_not_found")],
        "POST c/photos/search": [
            {"vector": [0.0]},                                  # alone: 422 invalid_request
            ({"id": "nobody"}, 404, "item_not_found"),
            (sent(files={"other": b"x"}), 415, "unsupported_media_type"),
        ],
    }

    @pytest.mark.parametrize("row", rows(TABLE))
    def test_refused(client, row):
        row.check(client)

`c/` is short for `/api/v1/collections/`. A body may contain "IMAGE", which `check` replaces by an image.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from rest_requests import is_problem

INVALID, TOO_LARGE = (422, "invalid_request"), (413, "request_too_large")
WRONG_TYPE = (415, "unsupported_media_type")


@dataclass(frozen=True)
class Sent:
    """A body that is not JSON: options of httpx."""

    options: Mapping[str, Any]


def sent(**options: Any) -> Sent:
    return Sent(options)


@dataclass(frozen=True)
class Row:
    """One request and its answer.

    request: method and path.
    body: JSON, None for no body, or `Sent`.
    code: of the error; None if the request is accepted.
    param: the parameter that the envelope of OpenAI names.
    """

    request: str
    body: Any
    status: int
    code: str | None
    param: str | None = None

    def send(self, client: httpx.Client, image: bytes = b"") -> httpx.Response:
        method, _, path = self.request.partition(" ")
        path = path.replace("c/", "/api/v1/collections/", 1) if path.startswith("c/") else path
        options: Mapping[str, Any]
        if isinstance(self.body, Sent):
            options = _with_image(self.body.options, image)
        else:
            options = {} if self.body is None else {"json": _with_image(self.body, base64.b64encode(image).decode())}
        return client.request(method, path, **options)

    def check(self, client: httpx.Client, image: bytes = b"") -> httpx.Response:
        """Send the request, check the status and the code of the answer, and return it."""
        answer = self.send(client, image)
        if self.code is None:
            assert answer.status_code == self.status, answer.text
        elif "/v1/" in self.request and "/api/" not in self.request:
            error = answer.json()["error"]
            assert {"message", "type", "param", "code"} == error.keys()
            assert (answer.status_code, error["code"], error["param"]) == (self.status, self.code, self.param)
            assert error["type"] == "invalid_request_error"
        else:
            is_problem(answer, self.status, self.code)
        return answer


def rows(table: Mapping[str, list[Any]], otherwise: tuple[int, str | None] = INVALID) -> list[Any]:
    """Return each row as a parameter of a test, named after the request and its body.

    Args:
        otherwise: status and code of a body without them.
    """
    found = []
    for request, bodies in table.items():
        for entry in bodies:
            row = Row(request, *entry) if isinstance(entry, tuple) else Row(request, entry, *otherwise)
            body = row.body.options if isinstance(row.body, Sent) else row.body
            found.append(pytest.param(row, id=f"{request} {'' if body is None else repr(body)[:50]}".strip()))
    return found


def _with_image(value: Any, image: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_image(one, image) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_image(one, image) for one in value)
    return image if isinstance(value, str) and value == "IMAGE" else value
