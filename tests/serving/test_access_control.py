"""Access control without a server: keys, scopes, hosts and origins."""

import asyncio
import hashlib

import pytest
from access_control_requests import READER, WRITER, ask, bearer, control_of, send_request
from starlette.responses import PlainTextResponse

from nnclr_hub.errors import InvalidRequest
from serving.access import AccessControl, AccessRules
from serving.routes import ROUTERS
from serving.settings import Settings

# ---- settings at startup


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "0", "192.0.2.7", "no-such-host.invalid", "[::1]"])
def test_a_server_on_the_network_without_keys_does_not_start(host):
    with pytest.raises(InvalidRequest, match="--insecure"):
        Settings.read(host=host)
    assert Settings.read(host=host, insecure=True).host == host
    assert Settings.read(host=host, write_keys=(WRITER,)).keys()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1", "::ffff:127.0.0.1"])
def test_a_local_server_needs_no_keys(host):
    assert not Settings.read(host=host).keys()


def test_invalid_settings_are_named(monkeypatch):
    with pytest.raises(InvalidRequest, match="NNCLR_MAX_BATCH"):
        Settings.read(max_batch=0)
    with pytest.raises(InvalidRequest, match="NNCLR_CORS_ORIGINS"):
        Settings.read(cors_origins=("*",))
    monkeypatch.setenv("NNCLR_API_KEYS", "not json")
    with pytest.raises(InvalidRequest, match="JSON"):
        Settings.read()
    monkeypatch.setenv("NNCLR_API_KEYS", f'{{"{READER}": 1}}')
    with pytest.raises(InvalidRequest, match="NNCLR_API_KEYS") as caught:
        Settings.read()
    assert READER not in str(caught.value)


# ---- keys and scopes


def test_keys_read_and_write():
    control = control_of(Settings(api_keys=(READER,), write_keys=(WRITER,)))
    path = "/api/v1/collections/c"
    for headers in ({}, bearer("wrong"), bearer(""), {"authorization": f"Basic {READER}"}, {"authorization": READER}):
        answer = ask(control, path, **headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert ask(control, path, **bearer(READER)).status == 200
    assert ask(control, path, authorization=f"bearer  {READER}").status == 200
    assert ask(control, path, "DELETE", **bearer(READER)).status == 403
    assert ask(control, path, "DELETE", **bearer(WRITER)).status == 200
    assert ask(control, "/healthz").status == 200


def test_access_control_works_without_the_limits_of_bodies():
    async def app(scope, receive, send):
        await PlainTextResponse(scope["user"].display_name)(scope, receive, send)

    control = AccessControl(app, AccessRules(ROUTERS), Settings(api_keys=(f"phone:{READER}",)))
    assert ask(control, "/v1/models").status == 401
    assert ask(control, "/v1/models", **bearer(READER)).body == b"phone"


def test_two_authorization_headers_are_refused():
    control = control_of(Settings(api_keys=(READER,)))
    pairs = [("host", "127.0.0.1"), ("authorization", "Bearer wrong"), ("authorization", f"Bearer {READER}")]
    assert asyncio.run(send_request(control, "/v1/models", "GET", pairs, "192.0.2.1")).status == 401


def test_the_app_gets_the_caller_and_its_scopes():
    control = control_of(Settings(api_keys=(f"phone:{READER}",), write_keys=(WRITER,)))
    phone = ask(control, "/v1/models", **bearer(READER)).scope
    assert (phone["user"].display_name, phone["auth"].scopes) == ("phone", ["read"])
    other = ask(control, "/v1/models", **bearer(WRITER)).scope
    assert (other["user"].display_name, other["auth"].scopes) == ("write-2", ["read", "write"])
    anyone = ask(Settings(), "/v1/models", client="127.0.0.1").scope
    assert (anyone["user"].display_name, anyone["auth"].scopes) == ("127.0.0.1", ["read", "write"])


def test_keys_come_from_the_environment_and_from_a_file(monkeypatch, tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# of the service\nread phone:{READER}\n\nwrite sha256:{hashlib.sha256(b'x').hexdigest()}\n")
    monkeypatch.setenv("NNCLR_API_KEYS", '["from-the-environment-1"]')
    monkeypatch.setenv("NNCLR_KEYS_FILE", str(file))
    settings = Settings.read(host="0.0.0.0")
    control = control_of(settings)
    assert ask(control, "/v1/models", **bearer("from-the-environment-1")).status == 200
    assert ask(control, "/v1/models", **bearer(READER)).scope["user"].display_name == "phone"
    assert ask(control, "/api/v1/collections/c", "DELETE", **bearer("x")).status == 200
    assert "from-the-environment-1" not in repr(settings)


# ---- names and origins


def test_the_host_is_checked_on_this_machine():
    for host, status in (
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST.:80", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("127.0.0.1:8000@evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("192.0.2.1", 403),
        ("", 403),
    ):
        assert ask(Settings(), "/v1/models", host=host).status == status, host
    assert ask(Settings(allowed_hosts=("box.local",)), "/v1/models", host="box.local:8000").status == 200
    pairs = [("host", "127.0.0.1"), ("host", "evil.example")]
    assert asyncio.run(send_request(control_of(Settings()), "/v1/models", "GET", pairs, "127.0.0.1")).status == 403


def test_without_keys_ip_addresses_are_allowed_and_unknown_names_are_not():
    """Another site can point its name at us, but not an IP address."""
    control = control_of(Settings(host="0.0.0.0", insecure=True, allowed_hosts=("photos.example",)))
    for host, status in (("192.0.2.1:8000", 200), ("[2001:db8::1]", 200), ("photos.example", 200), ("evil.test", 403)):
        assert ask(control, "/v1/models", host=host).status == status, host
    keyed = control_of(Settings(host="0.0.0.0", api_keys=(READER,)))
    assert ask(keyed, "/v1/models", host="any.example", **bearer(READER)).status == 200


@pytest.mark.parametrize(
    ("headers", "writes", "reads"),
    [
        ({}, 200, 200),
        ({"origin": "http://127.0.0.1"}, 200, 200),
        ({"origin": "http://127.0.0.1:80"}, 200, 200),
        ({"origin": "http://127.0.0.1:9000"}, 403, 200),
        ({"origin": "http://evil.example"}, 403, 200),
        ({"origin": "http://127.0.0.1@evil.example"}, 403, 200),
        ({"origin": "null"}, 403, 200),
        ({"origin": "file://"}, 403, 200),
        ({"sec-fetch-site": "cross-site"}, 403, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403, 200),
        ({"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1"}, 200, 200),
        ({"sec-fetch-site": "none"}, 200, 200),
    ],
)
def test_pages_of_other_origins_do_not_write(headers, writes, reads):
    for method, path, status in (("PUT", "/api/v1/collections/c", writes), ("GET", "/v1/models", reads)):
        pairs = [("host", "127.0.0.1"), *headers.items()]
        assert asyncio.run(send_request(control_of(Settings()), path, method, pairs, "127.0.0.1")).status == status


def test_only_listed_origins_may_use_the_api():
    control = control_of(Settings(api_keys=(READER,), cors_origins=("https://app.example",)))
    preflight = {"access_control_request_method": "POST", "access_control_request_headers": "authorization"}
    answer = ask(control, "/v1/embeddings", "OPTIONS", origin="https://app.example", **preflight)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    listed = {"origin": "https://app.example", "sec_fetch_site": "cross-site"}
    answer = ask(control, "/v1/embeddings", "POST", **listed, **bearer(READER))
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://app.example")
    assert "Origin" in answer.headers["vary"]
    refused = ask(control, "/v1/embeddings", "POST", **listed)
    assert refused.status == 401, "a page still needs a key"
    assert refused.headers["access-control-allow-origin"] == "https://app.example", "and can read why"
    for origin in ("https://evil.example", "https://app.example.evil.example", "http://app.example", "null"):
        answer = ask(control, "/v1/embeddings", "OPTIONS", origin=origin, **preflight)
        assert answer.status in (401, 403)
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", [b"http://evil.example", b"http://127.0.0.1"])
def test_a_websocket_is_closed(origin):
    """No route has one."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"127.0.0.1"), (b"origin", origin)]}
    asyncio.run(control_of(Settings())(scope, None, send))  # type: ignore[arg-type]
    assert [(one["type"], one["code"]) for one in sent] == [("websocket.close", 1008)]


# ---- headers


def test_every_response_has_the_security_headers():
    for settings, path in ((Settings(), "/v1/models"), (Settings(api_keys=(READER,)), "/v1/models")):
        headers = ask(settings, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "server" not in headers
