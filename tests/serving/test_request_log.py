"""Every response has an id, timings and a line in the log."""

import io
import json
import logging
import re
import uuid

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import generate_latest
from rest_requests import upload
from starlette.testclient import TestClient

from serving import problems
from serving.request_log import Json, Text, observed
from serving.telemetry import Metrics

TIMING = re.compile(r"(?:[a-z]+;dur=[\d.]+, )*total;dur=[\d.]+")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/", 307),
        ("GET", "/api/v1/collections", 200),
        ("GET", "/nothing", 404),
        ("GET", "/v1/models/none", 404),
        ("PATCH", "/api/v1/collections", 405),
        ("POST", "/api/v1/embed", 415),
    ],
)
def test_responses_and_errors_have_an_id_and_timings(client, method, path, status):
    first, second = (client.request(method, path) for _ in range(2))
    assert first.status_code == status
    assert uuid.UUID(first.headers["X-Request-ID"]) != uuid.UUID(second.headers["X-Request-ID"])
    assert TIMING.fullmatch(first.headers["Server-Timing"])


def test_refusals_of_access_control_have_them_too(client):
    foreign, big = {"headers": {"Host": "evil.example"}}, {"content": bytes(20_000_001)}
    for request, status in ((foreign, 403), (big, 413)):
        response = client.post("/api/v1/collections", **request)
        assert response.status_code == status
        assert TIMING.fullmatch(response.headers["Server-Timing"])
        assert response.json()["instance"] == f"/api/v1/collections#{response.headers['X-Request-ID']}"


def test_a_valid_id_of_the_client_is_used(client):
    for id in ("abc-123", "0af7651916cd43dd8448eb211c80319c", "a:b~c._-"):
        assert client.get("/nothing", headers={"X-Request-ID": id}).json()["instance"] == f"/nothing#{id}"
    for id in ("", "a" * 129, "a b", 'x"y', "<script>", "ä".encode()):
        answer = client.get("/healthz", headers={"X-Request-ID": id}).headers["X-Request-ID"]
        assert re.fullmatch("[0-9a-f]{32}", answer)


def test_timings_have_the_stages(client, collection, image_files):
    client.post(f"{collection}/items", files=upload(image_files[:1]), data={"items": '[{"id": "a"}]'})
    timing = client.post(f"{collection}/search", json={"id": "a"}).headers["Server-Timing"]
    assert "body;dur=" in timing
    assert "search;dur=" in timing
    assert "store;dur=" in client.get(f"{collection}/items/a").headers["Server-Timing"]


@pytest.fixture
def failing():
    """A logged app whose route fails."""
    app, metrics = FastAPI(), Metrics()
    problems.install(app)

    @app.get("/fails/{secret}")
    def fails(secret: str):
        raise RuntimeError("only in the log")

    return TestClient(observed(app, metrics), raise_server_exceptions=True), metrics


def test_a_failure_is_answered_counted_and_logged_once(failing, caplog):
    client, metrics = failing
    with caplog.at_level(logging.INFO):
        response = client.get("/fails/secret", headers={"X-Request-ID": "me"})
    assert response.status_code == 500
    assert (response.json()["code"], response.json()["instance"]) == ("internal", "/fails/secret#me")
    assert response.headers["X-Request-ID"] == "me"
    assert "only in the log" not in response.text
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    assert b'route="/fails/{secret}",status="500"} 1.0' in generate_latest(metrics.registry)
    lines = [record for record in caplog.records if record.name == "nnclr_hub.access"]
    assert [line.fields["route"] for line in lines].count("/fails/{secret}") == 1  # others end late


@pytest.mark.parametrize("root", ["", "/behind/a/proxy"])
def test_routes_of_a_mounted_app_are_logged_under_its_path_at_debug_level(root, caplog):
    inner, app, metrics = FastAPI(), FastAPI(), Metrics()
    inner.get("/queue/{event}")(lambda event: event)
    app.get("/own/{name}")(lambda name: name)
    app.mount("/app", inner)
    client = TestClient(observed(app, metrics), root_path=root)
    with caplog.at_level(logging.INFO, "nnclr_hub.access"):
        assert [client.get(root + path).status_code for path in ("/app/queue/secret", "/own/a")] == [200, 200]
    assert [record.fields["route"] for record in caplog.records if hasattr(record, "fields")] == ["/own/{name}"]
    assert b'route="/app/queue/{event}",status="200"} 1.0' in generate_latest(metrics.registry)


def lines(server, formatter: logging.Formatter, send) -> list[str]:
    """Collect the access log while requests are sent."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter)
    log = logging.getLogger("nnclr_hub.access")
    log.addHandler(handler)
    before = log.level
    log.setLevel(logging.INFO)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            send(client)
            client.get("/healthz")  # the line of a request is written after its answer
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    return text.getvalue().splitlines()


def test_json_lines_contain_no_private_data(server, collection, image_files):
    def send(client):
        headers = {"Authorization": "Bearer my-secret-key", "X-Request-ID": "one"}
        client.post("/api/v1/embed", files=[("files", ("my-secret-name.jpg", b"my-secret-body"))], headers=headers)
        client.post("/api/v1/embed", files=upload(image_files[:3]), headers={"X-Request-ID": "two"})
        client.get("/api/v1/collections/my-secret-collection?where=my-secret", headers={"X-Request-ID": "three"})

    entries = {entry["id"]: entry for entry in map(json.loads, lines(server, Json(), send))}
    assert (entries["one"]["status"], entries["one"]["code"], entries["one"]["images"]) == (422, "undecodable_image", 1)
    assert (entries["two"]["status"], entries["two"]["route"], entries["two"]["images"]) == (200, "/api/v1/embed", 3)
    assert entries["two"]["ms"] > 0
    assert entries["three"]["route"] == "/api/v1/collections/{name}"
    assert "my-secret" not in json.dumps(entries)


def test_text_lines(server):
    found = lines(server, Text(), lambda client: client.get("/v1/models", headers={"X-Request-ID": "me"}))
    [line] = [line for line in found if "id=me" in line]
    assert re.fullmatch(r"\S+Z info +GET /v1/models 200 id=me ms=[\d.]+", line)
