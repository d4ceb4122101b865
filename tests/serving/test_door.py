"""Keys, and addresses that others can reach."""

import asyncio

import pytest

from nnclr_hub.errors import InvalidRequest
from serving.security import Door
from serving.settings import Settings


def ask(settings: Settings, path: str, method: str = "GET", **headers: str) -> int:
    """The status that the door answers with; 200 is the app behind it."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    pairs = [
        (name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "127.0.0.1", **headers}.items()
    ]
    scope = {"type": "http", "path": path, "method": method, "headers": pairs, "query_string": b""}
    asyncio.run(Door(app, settings)(scope, receive, send))
    return sent[0]["status"]


def test_an_open_door_to_the_network_is_refused_at_the_start():
    with pytest.raises(InvalidRequest, match="--insecure"):
        Settings.read(host="0.0.0.0")
    assert Settings.read(host="0.0.0.0", insecure=True).host == "0.0.0.0"
    assert Settings.read(host="0.0.0.0", write_keys=("k",)).has_keys


def test_settings_that_cannot_be_are_explained(monkeypatch):
    with pytest.raises(InvalidRequest, match="NNCLR_MAX_BATCH"):
        Settings.read(max_batch=0)
    monkeypatch.setenv("NNCLR_API_KEYS", "not json")
    with pytest.raises(InvalidRequest, match="JSON"):
        Settings.read()


def test_keys_read_and_write():
    settings = Settings(api_keys=("reader",), write_keys=("writer",))
    path = "/api/v1/collections/c"
    assert ask(settings, path) == 401
    assert ask(settings, path, authorization="Bearer wrong") == 401
    assert ask(settings, path, authorization="Basic reader") == 401
    assert ask(settings, path, authorization="Bearer reader") == 200
    assert ask(settings, path, "DELETE", authorization="Bearer reader") == 403
    assert ask(settings, path, "DELETE", authorization="Bearer writer") == 200
    assert ask(settings, f"{path}/search", "POST", authorization="Bearer reader") == 200
    assert ask(settings, "/v1/embeddings", "POST", authorization="Bearer reader") == 200
    assert ask(settings, "/healthz") == 200


def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("NNCLR_API_KEYS", '["from-env"]')
    settings = Settings()
    assert settings.has_keys
    assert ask(settings, "/v1/models", authorization="Bearer from-env") == 200
    assert "from-env" not in repr(settings)


def test_the_host_is_checked_on_this_machine():
    settings = Settings()
    for host, status in (
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("", 403),
    ):
        assert ask(settings, "/v1/models", host=host) == status, host
    assert ask(Settings(allowed_hosts=("box.local",)), "/v1/models", host="box.local:8000") == 200


def test_a_write_from_another_origin_is_refused():
    settings = Settings()
    for origin, status in (("http://127.0.0.1", 200), ("http://evil.example", 403), ("null", 403)):
        assert ask(settings, "/api/v1/collections/c", "PUT", origin=origin) == status
    assert ask(settings, "/api/v1/collections/c", "GET", origin="http://evil.example") == 200
