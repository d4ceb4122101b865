"""Access control without a server: keys, scopes, hosts and origins."""

import asyncio
import hashlib

import pytest
from access_control_requests import READER, WRITER, ask, bearer, control_of, send_request
from pydantic import SecretStr

from nnclr_hub.errors import InvalidRequest
from serving.access import AccessRules
from serving.keys import READ, WRITE, Keys
from serving.openapi import document
from serving.routes import PAGES, ROUTERS
from serving.routes.router import Router
from serving.settings import Settings

# ---- access control without a server: keys, scopes, hosts and origins


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


# ---- aPI keys: their forms, invalid keys, and that no error message contains a secret


SECRET = "b3RoZXIga2V5cyBhcmUg"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def secrets(*texts: str) -> tuple[SecretStr, ...]:
    return tuple(map(SecretStr, texts))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SECRET, "read-1"),
        (f"phone:{SECRET}", "phone"),
        (f"sha256:{DIGEST}", "read-1"),
        (f"phone:sha256:{DIGEST.upper()}", "phone"),
    ],
)
def test_a_key_is_found_in_each_form(text, name):
    """Someone who reads the environment cannot use a hash."""
    key = Keys(secrets(text)).find(SECRET)
    assert key is not None
    assert (key.name, key.scopes) == (name, ("read",))
    for wrong in ("", SECRET[:-1], SECRET + "x", text if text != SECRET else "x", DIGEST, "ключ", "\udcff"):
        assert Keys(secrets(text)).find(wrong) is None


def test_a_key_for_both_scopes_may_write():
    for keys in (Keys(secrets(SECRET), secrets(SECRET)), Keys((), secrets(f"ci:{SECRET}"))):
        key = keys.find(SECRET)
        assert key is not None
        assert key.scopes == ("read", "write")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("short", "too easy"),
        ("ci:short", "too easy"),
        ("a" * 40, "too easy"),
        ("", "too easy"),
        ("sha256:1234", "64 hexadecimal digits"),
        (f"my key:{SECRET}", "name"),
        (f":{SECRET}", "name"),
        (f"ci:{SECRET} x", "space"),
        (f"ci:{SECRET}\n", "space"),
        (f"ci:{SECRET}é", "ASCII"),
    ],
)
def test_an_invalid_key_is_refused_without_being_shown(text, part):
    with pytest.raises(InvalidRequest, match=part) as caught:
        Keys(secrets(text))
    assert SECRET not in str(caught.value)


def test_a_keys_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# ours\nread phone:{SECRET}  # of the app\n\nwrite ci:{SECRET[::-1]}\n")
    keys = Keys(file=file)
    assert len(keys) == 2
    writer = keys.find(SECRET[::-1])
    assert writer is not None
    assert writer.name == "ci"
    for text, part in (("", "no keys"), (f"admin {SECRET}", "Line 1"), (f"{SECRET}\n", "Line 1")):
        file.write_text(text)
        with pytest.raises(InvalidRequest, match=part) as caught:
            Keys(file=file)
        assert SECRET not in str(caught.value)
    with pytest.raises(InvalidRequest):
        Keys(file=tmp_path / "missing")


# ---- the access that routes declare


RULES = AccessRules((*ROUTERS, *PAGES))
# a POST, PUT or DELETE that changes nothing is listed here too
READ_BY_BODY = {
    ("POST", "/v1/embeddings"),
    ("POST", "/embed"),
    ("POST", "/api/v1/embed"),
    ("POST", "/api/v1/attention"),
    ("POST", "/api/v1/collections/{name}/search"),
    ("POST", "/api/v1/collections/{name}/search/batch"),
    ("POST", "/api/v1/collections/{name}/lookup"),
    ("POST", "/api/v1/collections/{name}/facets"),
    ("POST", "/api/v1/collections/{name}/thumbnails"),
    ("POST", "/api/v1/probes/{name}/predict"),
}
KEYLESS = {"/healthz", "/readyz", "/health"}


def test_only_the_listed_routes_need_less_than_their_method_suggests():
    for path, methods in document()["paths"].items():
        for method in map(str.upper, methods):
            scope = RULES.of(method, path).scope
            expected = READ if method == "GET" or (method, path) in READ_BY_BODY else WRITE
            assert scope == (None if path in KEYLESS else expected), (method, path)


def test_a_route_without_declared_access_stops_the_start():
    router = Router()

    @router.on("GET", "/open", READ)
    def open_route() -> None: ...

    assert AccessRules([router]).of("HEAD", "/open").scope == READ

    @router.get("/forgotten")
    def forgotten_route() -> None: ...

    with pytest.raises(TypeError, match="/forgotten"):
        AccessRules([router])


@pytest.mark.parametrize("name", ["search", "embed", "embeddings", "predict", "v1", "healthz", "login"])
def test_no_name_turns_a_write_into_a_read(name):
    for method, path in (
        ("POST", f"/api/v1/collections/{name}/items"),
        ("PUT", f"/api/v1/collections/{name}"),
        ("DELETE", f"/api/v1/collections/{name}"),
        ("DELETE", f"/api/v1/collections/x/items/{name}"),
        ("POST", f"/api/v1/collections/x/items/{name}"),
        ("POST", f"/api/v1/collections/{name}/snapshot"),
        ("POST", f"/api/v1/probes/{name}"),
        ("PUT", f"/api/v1/collections/x/{name}"),
        ("POST", f"/v1/{name}x"),
        ("POST", f"//v1/{name}"),
        ("POST", f"/v1/{name}/"),
        ("POST", f"/v1/{name}\n"),
        ("PATCH", f"/v1/{name}"),
        ("BREW", "/app/x"),
        ("POST", "/app/x"),
    ):
        assert RULES.of(method, path).scope == WRITE, path
