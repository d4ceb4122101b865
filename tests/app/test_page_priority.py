"""In a server with the page, Gradio's own tasks have a lower priority than requests."""

import asyncio

import httpx
from gradio.queueing import Queue

from serving.request_log import RequestLog
from serving.request_priority import LOW_PRIORITY, PriorityLoop


def test_actions_of_the_page_have_low_priority_and_requests_do_not(model, tmp_path, serve, monkeypatch):
    seen = {}

    def record(owner, name, key) -> None:
        original = getattr(owner, name)

        async def recording(self, *args, **options):
            seen[key(*args)] = (LOW_PRIORITY.get(), isinstance(asyncio.get_running_loop(), PriorityLoop))
            return await original(self, *args, **options)

        monkeypatch.setattr(owner, name, recording)

    record(Queue, "process_events", lambda *_: "an action")
    record(Queue, "start_processing", lambda *_: "the queue")
    record(RequestLog, "__call__", lambda scope, *_: scope.get("path"))
    paths = ("/ui/", "/ui/theme.css", "/api/v1/collections")
    for served in serve(model, tmp_path / "store", page=True):
        for path in paths:
            assert httpx.get(served.url + path, timeout=60).status_code == 200
        start = f"{served.url}/ui/gradio_api/call/start"
        event = httpx.post(start, json={"data": ["", None, None]}, timeout=60).json()["event_id"]
        assert "complete" in httpx.get(f"{start}/{event}", timeout=60).text
    assert {name: seen[name] for name in ("an action", "the queue", *paths)} == {
        "an action": (True, True),
        "the queue": (True, True),
        "/ui/": (True, True),
        "/ui/theme.css": (False, True),
        "/api/v1/collections": (False, True),
    }
