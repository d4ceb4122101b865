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

PAGE = "https://app.example"  # of another origin, which the settings list
SERVERS = {
    "local": Settings(),
    "with a name": Settings(allowed_hosts=("box.local",)),
    "insecure": Settings(host="0.0.0.0", insecure=True, allowed_hosts=("photos.example",)),
    "keyed": Settings(host="0.0.0.0", api_keys=(f"phone:{READER}",), write_keys=(WRITER,)),
    "with a page": Settings(api_keys=(READER,), cors_origins=(PAGE,)),
}
REQUESTS = {
    "read": ("GET", "/v1/models"),
    "write": ("DELETE", "/api/v1/collections/c"),
    "health": ("GET", "/healthz"),
    "preflight": ("OPTIONS", "/v1/embeddings"),
}
HOST, ORIGIN, SITE, MODE, KEY = "host", "origin", "sec-fetch-site", "sec-fetch-mode", "authorization"
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
WRONG_KEYS = [{KEY: text} for text in ("Bearer wrong", "Bearer ", f"Basic {READER}", READER)]
# server, request, status -> headers, each alone. Without `host` it is 127.0.0.1
TABLE = {
    ("keyed", "read", 401): [{}, *WRONG_KEYS, [(KEY, "Bearer wrong"), (KEY, f"Bearer {READER}")]],
    ("keyed", "read", 200): [bearer(READER), {KEY: f"bearer  {READER}"}, {HOST: "any.example", **bearer(READER)}],
    ("keyed", "write", 401): [{}, *WRONG_KEYS],
    ("keyed", "write", 403): [bearer(READER)],
    ("keyed", "write", 200): [bearer(WRITER)],
    ("keyed", "health", 200): [{}, bearer("wrong")],
    ("local", "read", 200): [
        *({HOST: host} for host in ("127.0.0.1:8000", "localhost", "LOCALHOST.:80", "[::1]:8000")),
        *({ORIGIN: origin} for origin in ("http://127.0.0.1", "http://evil.example", "null", "file://")),
        {SITE: "cross-site", MODE: "navigate"},
        {SITE: "none"},
    ],
    ("local", "read", 403): [
        *({HOST: f"{host}evil.example"} for host in ("", "127.0.0.1:8000@", "127.0.0.1.")),
        *({HOST: host} for host in ("192.0.2.1", "")),
        [(HOST, "127.0.0.1"), (HOST, "evil.example")],
        {SITE: "cross-site"},
        {SITE: "same-site", MODE: "no-cors"},
    ],
    ("local", "write", 200): [
        {},
        *({ORIGIN: origin} for origin in ("http://127.0.0.1", "http://127.0.0.1:80")),
        {SITE: "same-origin", ORIGIN: "http://127.0.0.1"},
        {SITE: "none"},
    ],
    ("local", "write", 403): [
        *({ORIGIN: f"http://{name}"} for name in ("127.0.0.1:9000", "evil.example", "127.0.0.1@evil.example")),
        *({ORIGIN: origin} for origin in ("null", "file://", "http://[evil")),
        {SITE: "cross-site"},
        {SITE: "same-site", MODE: "no-cors"},
        {SITE: "cross-site", MODE: "navigate"},
    ],
    ("with a name", "read", 200): [{HOST: "box.local:8000"}],
    # another site can point its name at us, but not an IP address
    ("insecure", "read", 200): [{HOST: host} for host in ("192.0.2.1:8000", "[2001:db8::1]", "photos.example")],
    ("insecure", "read", 403): [{HOST: "evil.test"}],
    ("with a page", "preflight", 200): [{ORIGIN: PAGE, **PREFLIGHT}],
    ("with a page", "read", 200): [{ORIGIN: PAGE, SITE: "cross-site", **bearer(READER)}],
    ("with a page", "read", 401): [{ORIGIN: PAGE, SITE: "cross-site"}],  # a page still needs a key
    ("with a page", "preflight", 401): [
        {ORIGIN: origin, **PREFLIGHT} for origin in (f"{PAGE}.evil.example", "http://app.example", "null")
    ],
}
ROWS = [
    pytest.param(*row, headers, id=f"{' '.join(map(str, row))} {headers}")
    for row, several in TABLE.items()
    for headers in several
]


@pytest.mark.parametrize(("server", "request_", "status", "headers"), ROWS)
def test_a_request_is_accepted_or_refused(server, request_, status, headers):
    method, path = REQUESTS[request_]
    pairs = headers if isinstance(headers, list) else list({HOST: "127.0.0.1", **headers}.items())
    answer = asyncio.run(send_request(control_of(SERVERS[server]), path, method, pairs, "192.0.2.1"))
    assert answer.status == status
    assert answer.headers.get("www-authenticate", "").startswith("Bearer" if status == 401 else "")
    # a listed page can also read why it is refused; other pages read nothing
    allowed = PAGE if (ORIGIN, PAGE) in pairs else None
    assert answer.headers.get("access-control-allow-origin") == allowed
    assert "access-control-allow-credentials" not in answer.headers
    if allowed:
        assert request_ != "preflight" or "Authorization" in answer.headers["access-control-allow-headers"]
        assert "Origin" in answer.headers["vary"]
    for name, value in {
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cache-control": "no-store",
        "cross-origin-resource-policy": "same-origin",
    }.items():
        assert answer.headers[name] == value
    assert {"default-src 'none'", "frame-ancestors 'none'"} <= {*answer.headers["content-security-policy"].split("; ")}
    assert "server" not in answer.headers


@pytest.mark.parametrize("origin", [b"http://evil.example", b"http://127.0.0.1"])
def test_a_websocket_is_closed(origin):
    """No route has one."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"127.0.0.1"), (b"origin", origin)]}
    asyncio.run(control_of(Settings())(scope, None, send))  # type: ignore[arg-type]
    assert [(one["type"], one["code"]) for one in sent] == [("websocket.close", 1008)]


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


@pytest.mark.parametrize(
    ("flags", "keys", "name"),
    [
        ({"max_batch": 0}, "[]", "NNCLR_MAX_BATCH"),
        ({"cors_origins": ("*",)}, "[]", "NNCLR_CORS_ORIGINS"),
        ({"cors_origins": (f"{PAGE}/path",)}, "[]", "NNCLR_CORS_ORIGINS"),
        ({}, "not json", "JSON"),
        ({}, f'{{"{READER}": 1}}', "NNCLR_API_KEYS"),
    ],
)
def test_invalid_settings_are_named_and_no_key_is_shown(monkeypatch, flags, keys, name):
    monkeypatch.setenv("NNCLR_API_KEYS", keys)
    with pytest.raises(InvalidRequest, match=name) as caught:
        Settings.read(**flags)
    assert READER not in str(caught.value)


def test_a_caller_without_a_key_goes_by_its_address():
    caller = ask(Settings(), "/v1/models", client="127.0.0.1").scope
    assert (caller["user"].display_name, caller["auth"].scopes) == ("127.0.0.1", ["read", "write"])


# ---- keys: their forms and places, and that no error message contains a secret


SECRET = "b3RoZXIga2V5cyBhcmUg"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def test_keys_come_from_the_environment_and_from_a_file(monkeypatch, tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# of the service\nread phone:{READER}\n\nwrite sha256:{DIGEST}  # of a program\n")
    monkeypatch.setenv("NNCLR_API_KEYS", '["from-the-environment-1"]')
    monkeypatch.setenv("NNCLR_KEYS_FILE", str(file))
    settings = Settings.read(host="0.0.0.0")
    assert "from-the-environment-1" not in repr(settings)
    control = control_of(settings)
    scopes = {"from-the-environment-1": ("read-1", ["read"]), READER: ("phone", ["read"])}
    for key, expected in (scopes | {SECRET: ("write-3", ["read", "write"])}).items():
        caller = ask(control, "/v1/models", **bearer(key)).scope
        assert (caller["user"].display_name, caller["auth"].scopes) == expected


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
    keys = Keys(secrets(text))
    key = keys.find(SECRET)
    assert key is not None
    assert (key.name, key.scopes) == (name, ("read",))
    for wrong in ("", SECRET[:-1], SECRET + "x", text if text != SECRET else "x", DIGEST, "ключ", "\udcff"):
        assert keys.find(wrong) is None
    both = Keys(secrets(text), secrets(text)).find(SECRET)
    assert both is not None
    assert both.scopes == ("read", "write")


@pytest.mark.parametrize(
    "text",
    [
        *("short", "ci:short", SECRET[:15], "a" * 40, "", "sha256:1234"),
        *(f"my key:{SECRET}", f":{SECRET}", f"ci:{SECRET} x", f"ci:{SECRET}\n", f"ci:{SECRET}é"),
    ],
)
def test_an_invalid_key_is_refused_without_being_shown(text):
    with pytest.raises(InvalidRequest) as caught:
        Keys(secrets(text))
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["", f"admin {SECRET}", f"{SECRET}\n", None])
def test_an_invalid_file_of_keys_is_refused_without_being_shown(tmp_path, text):
    if text is not None:
        (tmp_path / "keys").write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        Keys(file=tmp_path / "keys")
    assert SECRET not in str(caught.value)


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
@pytest.mark.parametrize(
    "request_",
    [
        *(f"{method} /api/v1/collections/{{}}" for method in ("PUT", "DELETE")),
        *(f"POST /api/v1/collections/{{}}/{what}" for what in ("items", "snapshot")),
        *(f"{method} /api/v1/collections/x/items/{{}}" for method in ("POST", "DELETE")),
        *("PUT /api/v1/collections/x/{}", "POST /api/v1/probes/{}", "POST /app/x", "BREW /app/x"),
        *("POST /v1/{}x", "POST //v1/{}", "POST /v1/{}/", "POST /v1/{}\n", "PATCH /v1/{}"),
    ],
)
def test_no_name_turns_a_write_into_a_read(name, request_):
    method, _, path = request_.format(name).partition(" ")
    assert RULES.of(method, path).scope == WRITE
