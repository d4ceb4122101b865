"""Sessions of browsers: what the cookie opens, what it does not, and how it ends."""

import asyncio
import re
import time
from collections.abc import Iterator

import httpx
import pytest
from access_control_requests import control_of, send_request
from pydantic import SecretStr

from serving.settings import Settings

READER, WRITER = "reader-0123456789abcdef", "writer-0123456789abcdef"


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
    answer = asyncio.run(ask_with(control_of(settings), "/login", "POST", f"key={READER}".encode(), scheme=scheme))
    return answer.headers["set-cookie"].partition(";")[0]


def opens(settings: Settings, cookie: str, scheme: str = "http") -> bool:
    answer = asyncio.run(ask_with(control_of(settings), "/v1/models", "GET", b"", scheme=scheme, cookie=cookie))
    return answer.status == 200


async def ask_with(control, path, method, body, *, scheme, cookie=""):
    pairs = [("host", "127.0.0.1"), ("cookie", cookie)]
    return await send_request(control, path, method, pairs, "192.0.2.1", body, scheme)


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
