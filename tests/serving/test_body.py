"""Bodies and heads that mean ill, sent to a real server byte by byte; afterwards it must be well."""

import gzip
import json
import socket
import time
from collections.abc import Iterable, Iterator

import httpx
import pytest

from nnclr_hub.errors import RequestTooSlow
from serving.security import protocol

FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
EMBED = b"POST /api/v1/embed HTTP/1.1\r\nHost: 127.0.0.1\r\n" + FORM
PUT = b"PUT /api/v1/collections/c/items HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
PART = b'--b\r\nContent-Disposition: form-data; name="%s"; filename="x.jpg"\r\n\r\nx\r\n'
FIELD = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\nx\r\n'


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve) -> Iterator:
    folder = tmp_path_factory.mktemp("body") / "store"
    for server in serve(model, folder, body_idle_s=0.3, body_s=1.0, max_bytes=2_000_000, bodies_bytes=2_500_000):
        httpx.put(f"{server.url}/api/v1/collections/c", json={"dim": 2})
        yield server


@pytest.fixture(autouse=True)
def well_afterwards(server) -> Iterator[None]:
    yield
    assert httpx.get(f"{server.url}/readyz").status_code == 200


def raw(server, pieces: Iterable[bytes], timeout: float = 15) -> bytes:
    """What the server sends until it closes, or has sent a whole answer."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=timeout) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # it has closed, and may have said why
        answer = b""
        while b"\r\n\r\n" not in answer:
            try:
                chunk = connection.recv(65536)
            except ConnectionError:
                break
            if not chunk:
                break
            answer += chunk
        return answer


def chunked(piece: bytes, times: int) -> Iterator[bytes]:
    for _ in range(times):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


# ---- the body


@pytest.mark.parametrize("head", [EMBED, PUT])
def test_a_chunked_body_is_counted(server, head):
    """It says nothing of its length."""
    start = b"Transfer-Encoding: chunked\r\n\r\n" + (b"26\r\n" + FIELD[:36] + b'f"\r\n' if head is EMBED else b"")
    answer = raw(server, [head + start, *chunked(b" " * 50_000, 60)])
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    if head is PUT:
        assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("head", [EMBED, PUT])
@pytest.mark.parametrize("length", [2_000_001, 10**12, 10**18])
def test_a_length_above_the_limit_is_believed(server, head, length):
    assert raw(server, [head + b"Content-Length: %d\r\n\r\n" % length]).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -3\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: 99999999999999999999999999\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"X: a\x00b\r\n",
        b"X: a\n b\r\n",
        b" X: folded\r\n",
    ],
)
def test_a_head_that_two_servers_could_read_differently_is_refused(server, headers):
    """Or a request could be smuggled past a proxy within another's body."""
    smuggled = b"abcGET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert raw(server, [PUT + headers + b"\r\n" + smuggled]).startswith(b"HTTP/1.1 400")


def test_a_silent_client_is_answered_408(server):
    answer = raw(server, [PUT + b"Content-Length: 1000\r\n\r\n[1,"])
    assert answer.startswith(b"HTTP/1.1 408")
    assert RequestTooSlow.code.encode() in answer


def test_a_dripping_client_too(server):
    """A byte now and then is never silent for long, and yet the body must come to an end."""

    def drip() -> Iterator[bytes]:
        yield PUT + b"Content-Length: 1000\r\n\r\n"
        for _ in range(12):
            time.sleep(0.15)
            yield b" "

    assert raw(server, drip()).startswith(b"HTTP/1.1 408")


def test_what_still_comes_after_an_answer_is_thrown_away_for_a_while_only(server, monkeypatch):
    monkeypatch.setattr(protocol, "PATIENCE_S", 0.5)

    def endless() -> Iterator[bytes]:
        yield PUT + b"Transfer-Encoding: chunked\r\n\r\n"
        for piece in chunked(b" " * 60_000, 1000):
            time.sleep(0.005)
            sent.append(len(piece))
            yield piece

    sent: list[int] = []
    raw(server, endless())
    assert len(sent) < 900


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x" * 1000])
def test_a_compressed_body_is_refused(server, encoding):
    """A thousandfold in a hundred bytes: bombs are refused before they are opened."""
    body = gzip.compress(bytes(10_000_000))
    answer = httpx.post(f"{server.url}/api/v1/embed", content=body, headers={"Content-Encoding": encoding})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize("part", [PART, FIELD])
@pytest.mark.parametrize("count", [65, 999, 20_000])
@pytest.mark.parametrize("path", ["/api/v1/embed", "/api/v1/collections/c/items", "/api/v1/collections/c/search"])
def test_thousands_of_parts_are_refused(server, part, count, path):
    body = b"".join(part % b"files" for _ in range(count)) + b"--b--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = httpx.post(server.url + path, content=body, headers=headers, timeout=120)
    assert answer.status_code in (400, 413, 422)
    assert answer.json()["code"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\nContent-Disp",
        b"--b--",
        b"--b\r\n\r\n\r\n--b--\r\n",
        b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="'
        + b"a" * 500_000
        + b'"\r\n\r\nx\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="m"\r\n\r\n' + b"x" * 1_900_000 + b"\r\n--b--\r\n",
        b"--b\r\n" + b"X: y\r\n" * 100_000 + b"\r\n\r\n--b--\r\n",
        b"garbage" * 1000,
    ],
)
def test_a_broken_form_is_refused(server, body):
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert httpx.post(f"{server.url}/api/v1/embed", content=body, headers=headers).status_code in (400, 413, 422)


def test_a_form_that_breaks_off_is_refused_whole(server):
    """Wherever it does; with its last boundary the same form is taken."""
    item = b'--b\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\nx\r\n'
    whole = item % b"one.jpg" + item % b"two.jpg" + b"--b--"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    for end in range(1, len(whole), 7):
        answer = httpx.post(f"{server.url}/api/v1/embed", content=whole[:end], headers=headers)
        assert answer.status_code == 400, whole[:end]
    assert "breaks off before its last boundary" in answer.json()["detail"]
    answer = httpx.post(f"{server.url}/api/v1/embed", content=whole, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "undecodable_image")  # they are no pictures


# ---- all bodies together


def test_half_sent_bodies_need_permits_and_give_them_back(server):
    """However many clients send at once, what the server holds of them stays below what the settings say."""
    port = int(server.url.rpartition(":")[2])
    head = PUT + b"Content-Length: 1900000\r\n\r\n["
    half: list[socket.socket] = []
    try:
        for _ in range(3):
            half.append(socket.create_connection(("127.0.0.1", port), timeout=10))
            half[-1].sendall(head + b" " * 1_000_000)
        answers = [one.recv(65536) for one in half]
    finally:
        for one in half:
            one.close()
    assert sorted(answer[9:12] for answer in answers) == [b"408", b"408", b"429"]
    refused = next(answer for answer in answers if answer[9:12] == b"429")
    assert b"retry-after: 1" in refused.lower()
    assert b'"code":"overloaded"' in refused
    for _ in range(5):  # a whole body fits again, as often as one likes
        body = b"[" + b" " * 1_900_000 + b"]"
        headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
        assert httpx.put(f"{server.url}/api/v1/collections/c/items", content=body, headers=headers).status_code != 429


# ---- JSON


def shapes(inner: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Every place of a JSON body where anything may stand, with it there."""
    yield "PUT", "/api/v1/collections/c/items", inner
    for field in (b"id", b"vector", b"metadata"):
        item = {b"id": b'"a"', b"vector": b"[1, 2]", b"metadata": b"{}"} | {field: inner}
        yield (
            "PUT",
            "/api/v1/collections/c/items",
            b"[{" + b",".join(b'"%s":%s' % pair for pair in item.items()) + b"}]",
        )
    yield "PUT", "/api/v1/collections/c/items", b'[{"id":"a","vector":[1,2],"metadata":{"a":%s}}]' % inner
    yield "PUT", "/api/v1/collections/c/items", b'[{"id":"a","vector":[1,%s]}]' % inner
    for field in (b"k", b"where", b"box", b"exact", b"score_threshold", b"effort", b"image", b"unknown"):
        yield "POST", "/api/v1/collections/c/search", b'{"vector":[1,2],"%s":%s}' % (field, inner)
    yield "POST", "/api/v1/collections/c/search", b'{"vector":[1,2],"where":{"must":[{"key":"a","match":%s}]}}' % inner
    for field in (b"dim", b"indexed", b"model"):
        yield "PUT", "/api/v1/collections/d", b'{"%s":%s}' % (field, inner)
    for field in (b"model", b"input", b"dimensions", b"user"):
        yield "POST", "/v1/embeddings", b'{"model":"m","input":"YQ==","%s":%s}' % (field, inner)


def test_millions_of_lists_hold_nobody_up(server):
    """Making them takes seconds in which no other thread runs."""
    with httpx.Client(base_url=server.url, timeout=120) as client:
        for method, path, body in shapes(b"[" + b"[]," * 500_000 + b"[]]"):
            answer = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 413, (path, answer.text[:300])
            assert "lists and objects" in answer.text
        metadata = {"note": "[{" * 200_000 + '\\"'}  # these are words
        answer = client.put("/api/v1/collections/c/items", json=[{"id": "a", "vector": [1, 2], "metadata": metadata}])
        assert "lists and objects" not in answer.text


@pytest.mark.parametrize(
    "inner",
    [
        b"[" * 10_000,
        b"[" * 10_000 + b"]" * 10_000,
        b"[" * 900 + b"]" * 900,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"must":[' * 60 + b"]}" * 60,
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e400",
        b"9" * 400,
        b"9" * 5000,
        b"-0.0e-999999",
        b'"\\ud800"',
        b'"\\u0000"',
        b'"\xff\xfe"',
        b'"' + b"a" * 100_000 + b'"',
        b"null",
        b"true",
        b"[]",
        b"{}",
    ],
    ids=lambda inner: inner[:12].decode("latin-1") + f"-{len(inner)}",
)
def test_no_json_makes_the_server_fail(server, inner):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        for method, path, body in shapes(inner):
            answer = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (200, 201, 400, 404, 409, 413, 415, 422), (path, body[:60], answer.text[:300])
            json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        client.delete("/api/v1/collections/d")


# ---- the head


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /healthz HTTP/1.1\r\nX: ", *[b"y" * 60_000] * 30],
        [b"GET /healthz HTTP/1.1\r\n", *[b"X: yyyyyyyyyyyyyyy\r\n" * 1000] * 30],
        [b"GET /", *[b"y" * 60_000] * 30],
    ],
)
def test_a_head_that_never_ends_is_cut_off(server, pieces):
    assert raw(server, pieces)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")  # b"": cut off before it could read why


def test_a_head_below_the_limit_is_read(server):
    answer = raw(server, [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 60_000 + b"\r\n\r\n"])
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("start", [b"", b"GET /healthz HTTP/1.1\r\nHos"])
def test_a_connection_that_says_nothing_is_closed(server, monkeypatch, start):
    monkeypatch.setattr(protocol, "PATIENCE_S", 0.3)
    assert raw(server, [start], timeout=10) == b""


def test_answers_do_not_say_what_serves_them(server):
    for pieces in (
        [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
        [b"nonsense\r\n\r\n"],
        [b"GET /x HTTP/1.1\r\n\r\n"],
    ):
        answer = raw(server, pieces).lower()
        assert b"server:" not in answer
        assert b"uvicorn" not in answer
