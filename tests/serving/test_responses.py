"""The media type of a response, and work that ends with its client."""

import asyncio

import pytest
from fastapi import Request
from starlette.requests import ClientDisconnect

from serving.answers import BYTES, JSON, NPY, wanted
from serving.limits import while_connected


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


@pytest.mark.parametrize("ended_by", ["client", "server"])
def test_work_ends_with_its_client_or_with_its_task(ended_by):
    """No task is left behind: neither the work nor the one that waits for the disconnect."""

    async def run() -> None:
        begun, gone, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def receive():
            await gone.wait()
            return {"type": "http.disconnect"}

        async def work():
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        request = Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive)
        task = asyncio.create_task(while_connected(request, work()))
        await begun.wait()
        assert not cancelled.is_set()
        if ended_by == "client":
            gone.set()
        else:
            task.cancel()
        with pytest.raises(ClientDisconnect if ended_by == "client" else asyncio.CancelledError):
            await task
        assert cancelled.is_set()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
