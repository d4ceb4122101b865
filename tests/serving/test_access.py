"""Access control: hosts, origins, keys and scopes, without a server; and the sessions of browsers."""

import asyncio
import hashlib
import re
import time
from collections.abc import Iterable, Iterator

import httpx
import pytest
from pydantic import SecretStr

from nnclr_hub.errors import InvalidRequest
from serving.access import AccessControl, AccessRules
from serving.keys import READ, WRITE, Keys
from serving.limits import RequestLimits
from serving.openapi import document
from serving.routes import PAGES, ROUTERS
from serving.routes.router import Router
from serving.settings import Settings

READER, WRITER = "reader-0123456789abcdef", "writer-0123456789abcdef"
HOST, ORIGIN, SITE, MODE, KEY = "host", "origin", "sec-fetch-site", "sec-fetch-mode", "authorization"
LOCAL = (HOST, "127.0.0.1")


class Answer:
    """A response; status 200 comes from the app behind the layers."""

    def __init__(self, sent: list[dict], scope: dict) -> None:
        self.status: int = sent[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        self.scope = scope


def control_of(settings: Settings) -> AccessControl:
    """Return access control and the limits of bodies, with nothing behind them but an app that answers 200."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return AccessControl(RequestLimits(app, settings), AccessRules(ROUTERS), settings)


def ask(
    control: AccessControl,
    path: str,
    method: str = "GET",
    headers: Iterable[tuple[str, str]] = (LOCAL,),
    *,
    body: bytes = b"",
    client: str = "192.0.2.1",
    scheme: str = "http",
) -> Answer:
    sent: list[dict] = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": body}

    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "path": path,
        "method": method,
        "headers": pairs,
        "query_string": b"",
    }
    scope |= {"client": (client, 1), "scheme": scheme}
    asyncio.run(control(scope, receive, send))
    return Answer(sent, scope)


def bearer(key: str) -> dict[str, str]:
    return {KEY: f"Bearer {key}"}


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
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
WRONG_KEYS = [{KEY: text} for text in ("Bearer wrong", "Bearer ", f"Basic {READER}", READER, f"Bearer {READER[:-1]}")]
WRONG_KEYS += [{name: READER} for name in ("x-api-key", "proxy-authorization", "cookie")]
CLAIMS = {"x-http-method-override": "GET", "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"}
# server, request, status -> headers, each alone. Without `host` it is 127.0.0.1
TABLE = {
    ("keyed", "read", 401): [{}, *WRONG_KEYS, [(KEY, "Bearer wrong"), (KEY, f"Bearer {READER}")]],
    ("keyed", "read", 200): [bearer(READER), {KEY: f"bearer  {READER}"}, {HOST: "any.example", **bearer(READER)}],
    ("keyed", "write", 401): [{}, *WRONG_KEYS, CLAIMS],
    ("keyed", "write", 403): [bearer(READER), bearer(READER) | CLAIMS],
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
    answer = ask(control_of(SERVERS[server]), path, method, pairs)
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
        ({"deadline_s": float("inf")}, "[]", "NNCLR_DEADLINE_S"),
        ({"drain_s": float("nan")}, "[]", "NNCLR_DRAIN_S"),
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
    caller = ask(control_of(Settings()), "/v1/models", client="127.0.0.1").scope
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
        caller = ask(control, "/v1/models", headers=[LOCAL, *bearer(key).items()]).scope
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


# ---- sessions of browsers: what the cookie opens, what it does not, and how it ends


@pytest.fixture(scope="module")
def keyed(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(
        model,
        tmp_path_factory.mktemp("keyed") / "store",
        page=True,
        api_keys=(f"phone:{READER}",),
        write_keys=(f"ci:{WRITER}",),
    )


@pytest.fixture
def visitor(keyed) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=keyed.url, timeout=120, headers={"Accept": "text/html"}) as client:
        yield client


def log_in(visitor: httpx.Client, key: str = READER, **fields: str) -> httpx.Response:
    return visitor.post("/login", data={"key": key, **fields})


def target(answer: httpx.Response) -> str:
    """Return the path of a redirect, which is relative to the request: a proxy may add a prefix."""
    assert not answer.headers["location"].startswith(("/", "http"))
    assert answer.next_request is not None
    return answer.next_request.url.raw_path.decode()


def test_the_login_form_leads_back(visitor):
    answer = visitor.get("/docs")
    assert (answer.status_code, target(answer)) == (303, "/login?next=%2Fdocs")
    form = visitor.get("/login?next=%2Fdocs")
    assert form.status_code == 200
    assert "<script" not in form.text
    assert 'type="password"' in form.text
    assert "script-src" not in form.headers["content-security-policy"]
    assert "default-src 'none'" in form.headers["content-security-policy"]
    answer = log_in(visitor, next="/docs")
    assert (answer.status_code, target(answer)) == (303, "/docs")
    cookie = answer.headers["set-cookie"]
    assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= set(cookie.lower().split("; "))
    assert READER not in cookie
    assert visitor.get("/docs").status_code == 200
    assert visitor.get("/v1/models").status_code == 200
    assert "phone" in visitor.get("/login").text


def test_the_web_app_loads_without_a_key_and_holds_no_data(visitor):
    page = visitor.get("/")
    assert page.status_code == 200
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="(app/[^"]+)"', page.text):
        assert visitor.get(f"/{name}").status_code == 200, name
    assert visitor.get("/app/../api/v1/collections").status_code != 200
    for path in ("/app", "/app/"):
        answer = visitor.get(path)
        assert (answer.status_code, target(answer)) == (307, "/"), path


@pytest.mark.parametrize(
    "then", ["//evil.example", "https://evil.example", "/\\evil", "/docs/../x", "/docs\r\nX: y", "/x"]
)
def test_a_login_never_redirects_to_another_site(visitor, then):
    assert target(log_in(visitor, next=then)) == "/"
    assert "evil" not in visitor.get("/login", params={"next": then}).text


OWN = "OWN"  # is replaced by the address of the server
SAME, CROSS, NEAR = ({"Sec-Fetch-Site": f"{kind}"} for kind in ("same-origin", "cross-site", "same-site"))
OTHER = {"Origin": "http://127.0.0.1:1"}  # another port of this machine is the same site, so the cookie is sent
DELETE, DOCS, MODELS = "DELETE /api/v1/collections/x", "GET /docs", "GET /v1/models"
# the key that logged in, the request, its headers, and the status
COOKIES = [
    *((WRITER, DELETE, {"Origin": OWN, **site}, 404) for site in ({}, SAME)),
    *((WRITER, DELETE, headers, status) for headers, status in (({"Referer": OWN}, 401), ({"Origin": "null"}, 403))),
    (READER, DELETE, {"Origin": OWN}, 403),
    *(
        (WRITER, request, headers, 401)
        for request in ("PUT /api/v1/collections/x", DELETE, "POST /api/v1/embed")
        for headers in ({}, {"Sec-Fetch-Site": "none"}, SAME, {"Origin": OWN, **NEAR})
    ),
    *((READER, request, {**OTHER, **site}, 403) for request in (MODELS, "POST /logout") for site in (CROSS, NEAR)),
    *((READER, DOCS, {**site, "Sec-Fetch-Mode": "navigate"}, 303) for site in (CROSS, NEAR)),
    *(
        (None, DOCS, {"Cookie": cookie}, 303)
        for cookie in ("nnclr_session=x", "nnclr_session=", "nnclr_session", "=;;;", '"\\', "__Host-nnclr_session=x")
    ),
    (None, DOCS, {"Accept": "application/json"}, 401),  # programs get no form
]


@pytest.mark.parametrize(("key", "request_", "headers", "status"), COOKIES, ids=str)
def test_the_cookie_opens_only_what_the_own_page_sends(visitor, key, request_, headers, status):
    if key is not None:
        log_in(visitor, key)
    method, _, path = request_.partition(" ")
    own = f"{visitor.base_url.scheme}://{visitor.base_url.netloc.decode()}"
    sent = {name: own if value == OWN else value for name, value in headers.items()}
    assert visitor.request(method, path, headers=sent).status_code == status


def test_logging_out_ends_the_session_on_the_server(visitor):
    log_in(visitor)
    cookies = dict(visitor.cookies)
    assert target(visitor.get("/logout")) == "/login"
    assert visitor.get("/docs").status_code == 200, "a GET does not log out"
    answer = visitor.post("/logout")
    assert "1970" in answer.headers["set-cookie"]
    assert not visitor.cookies
    stolen = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    assert visitor.get("/docs", headers=stolen).status_code == 303


def test_a_wrong_key_is_reported_on_the_form_and_not_shown(visitor):
    answer = log_in(visitor, "<script>alert(1)</script>")
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert "alert(1)" not in answer.text
    assert "set-cookie" not in answer.headers
    for body in (b"key=" + b"x" * 100_000, b"&".join([b"key=x"] * 1000), b"\xff\xfe", b""):
        answer = visitor.post("/login", content=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert answer.status_code == 401


def cookie_of(settings: Settings, scheme: str = "http") -> str:
    """Log in, and return the cookie that a browser would send."""
    answer = ask(control_of(settings), "/login", "POST", body=f"key={READER}".encode(), scheme=scheme)
    return answer.headers["set-cookie"].partition(";")[0]


def opens(settings: Settings, cookie: str, scheme: str = "http") -> bool:
    return ask(control_of(settings), "/v1/models", headers=[LOCAL, ("cookie", cookie)], scheme=scheme).status == 200


def test_a_session_expires_and_holds_on_servers_with_its_secret_and_key(monkeypatch):
    secrets = [SecretStr("s" * 32), SecretStr("o" * 32)]
    first, replica, other = (
        Settings(api_keys=(READER,), session_secret=secrets[i], session_hours=1) for i in (0, 0, 1)
    )
    keyless = Settings(api_keys=("another-key-0123456789",), session_secret=secrets[0])
    cookie = cookie_of(first)
    assert [opens(one, cookie) for one in (first, replica, other, keyless)] == [True, True, False, False]
    name, _, token = cookie.partition("=")
    for place in range(0, len(token), 7):
        forged = token[:place] + chr(ord(token[place]) ^ 1) + token[place + 1 :]
        assert not opens(first, f"{name}={forged}")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3602)
    assert not opens(first, cookie)


def test_over_https_the_cookie_is_secure():
    settings = Settings(api_keys=(READER,))
    cookie = cookie_of(settings, "https")
    assert cookie.startswith("__Host-nnclr_session=")
    assert opens(settings, cookie, "https")
    assert not opens(settings, cookie)


def test_without_keys_there_is_no_login(client):
    answer = client.get("/login")
    assert (answer.status_code, target(answer)) == (303, "/")
