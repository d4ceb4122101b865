"""In which form an answer is given."""

import pytest
from fastapi import Request

from serving.responses import BYTES, JSON, NPY, wanted


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json;q=0.5, application/x-npy;q=0.9", NPY),
        ("application/x-npy;q=0.5, application/json", JSON),
        ("application/x-npy;q=0", JSON),
        ("text/html, application/x-npy", NPY),
        ("application/octet-stream, application/x-npy", BYTES),
        ("*/*", JSON),
        ("application/*", JSON),
        ("application/x-npy;q=high", NPY),
        ("application/x-npy;q=0.1, */*", JSON),
        ("application/*;q=0.9, application/json;q=0", NPY),
        ("application/*, application/x-npy", NPY),
        ("*/*, application/x-npy", NPY),
        ("application/json, */*", JSON),
        ("text/html", JSON),
        ("", JSON),
    ],
)
def test_the_preferred_media_type_is_chosen(accept, kind):
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    assert wanted(request, NPY, BYTES) == kind


def test_the_default_is_json():
    assert wanted(Request({"type": "http", "headers": []}), NPY, BYTES) == JSON
