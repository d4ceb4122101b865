"""Responses: media types, HEAD, disconnects, and the reports of runs."""

import asyncio

import httpx
import pytest
from fake_runs import write_run
from fastapi import Request
from rest_requests import upload
from starlette.requests import ClientDisconnect

from serving.answers import BYTES, JSON, NPY, wanted
from serving.limits import while_connected

# ---- the media type of a response, and work that ends with its client


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json;q=0.5, application/x-npy;q=0.9", NPY),
        ("application/x-npy;q=0.5, application/json", JSON),
        ("application/x-npy;q=0", JSON),
        ("text/html, application/x-npy", NPY),
        ("application/octet-stream, application/x-npy", BYTES),
        ("application/x-npy;q=high", NPY),
        ("application/x-npy;q=0.1, */*", JSON),
        ("application/json, */*", JSON),
        ("text/html", JSON),
        ("", JSON),
    ],
)
def test_the_preferred_media_type_is_chosen(accept, kind):
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    assert wanted(request, NPY, BYTES) == kind


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


# ---- hEAD requests: the status and headers of GET, without the body


OF_ONE_ANSWER = ("x-request-id", "server-timing", "date")


def headers(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in OF_ONE_ANSWER}


def test_every_get_route_supports_head(client, server, collection, image_files):
    client.post(f"{collection}/items", files=upload(image_files[:1]), data={"items": '[{"id": "a"}]'})
    job = client.post(f"{collection}/verify").json()["id"]
    paths = [path for path, methods in server.app.openapi()["paths"].items() if "get" in methods]
    paths += ["/", "/favicon.ico", "/docs", "/openapi.json"]
    assert len(paths) > 15
    found = []
    for template in paths:
        id = job if "/jobs/" in template else "a"
        path = (
            template.replace("{name}", "photos")
            .replace("{id}", id)
            .replace("{alias}", "nothing")
            .replace("{probe}", "nothing")
        )
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        if "/jobs" not in path and path != "/metrics":  # these change between two requests
            assert headers(head) == headers(got), path
        found.append(got.status_code)
    assert found.count(200) > 10


def test_a_route_without_get_has_no_head(client, collection):
    assert client.head(f"{collection}/search").status_code == 405


# ---- pretraining runs over REST; a report is somebody's file, and shut in


def test_runs_and_their_reports(client, server):
    write_run(server.app.state.settings.runs / "first")  # again: a run that writes nothing for long has stopped
    [run] = [one for one in client.get("/api/v1/runs").json()["runs"] if one["name"] == "first"]
    assert (run["state"], run["step"], run["steps"]) == ("running", 40, 100)
    answer = client.get("/api/v1/runs/first/report")
    assert answer.status_code == 200
    assert "Epoch 4" in answer.text
    write_run(server.app.state.settings.runs / "sets" / "a b", report="<h1>b</h1>")
    assert client.get("/api/v1/runs/sets/a%20b/report").text == "<h1>b</h1>"


def test_a_report_cannot_run_scripts_or_load_files(client):
    headers = client.get("/api/v1/runs/first/report").headers
    policy = headers["content-security-policy"].split("; ")
    assert {"sandbox", "default-src 'none'", "frame-ancestors 'self'", "form-action 'none'"} <= set(policy)
    assert not any("script" in part or "http" in part for part in policy)
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert headers["x-content-type-options"] == "nosniff"
