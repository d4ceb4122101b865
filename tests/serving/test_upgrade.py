"""An offer to change the protocol is ignored: the body is read, and never executed as a request."""

import base64
import itertools
import json
import re
import socket
import time

import httpx
import pytest
from rest_requests import talk
from waiting import until

pytestmark = pytest.mark.usefixtures("well_afterwards")

QUERY = json.dumps({"vector": [1, 0]}).encode()
SEARCH = "/api/v1/collections/c/search"
INNER = b"DELETE /api/v1/collections/victim HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
OFFERS = {
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "java": b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\nUpgrade: h2c\r\n",
    "other": b"connection: keep-alive , uPGRADE\r\nUPGRADE: TLS/1.0, x/2\r\n",
    "several": b"Upgrade: a\r\nConnection: close\r\nEmpty:\r\nConnection: upgrade\r\nUpgrade: b\r\nUpgrade:\r\n",
}
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY", "PROPFIND", "LOCK", "SOURCE"]


@pytest.fixture
def victim(strict):
    """Create a collection, and check after the test that nothing deleted it."""
    address = f"{strict.url}/api/v1/collections/victim"
    assert httpx.put(address, json={"dim": 2}, timeout=60).status_code in (200, 201)
    yield
    assert httpx.get(address, timeout=60).status_code == 200


def statuses(answer: bytes) -> list[int]:
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def framed(body: bytes, encoding: str) -> bytes:
    """Return the header that announces a body, an empty line, and the body in this encoding."""
    if encoding == "length":
        return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    pieces = [b"%x\r\n%s\r\n" % (len(one), one) for one in (body[:7], body[7:]) if one]
    return b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(pieces) + b"0\r\n\r\n"


def head(method: str, path: str, offer: bytes, *, close: bool = True) -> bytes:
    end = b"Connection: close\r\n" if close else b""
    start = b"%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\n" % (method.encode(), path.encode())
    return start + b"Content-Type: application/json\r\n" + offer + end


@pytest.mark.parametrize("encoding", ["length", "chunked"])
@pytest.mark.parametrize("offer", OFFERS)
def test_the_body_is_read_however_it_is_split(strict, victim, offer, encoding):
    """First splits in two packets, all around the end of the head, then every byte in its own packet."""
    message = head("POST", SEARCH, OFFERS[offer]) + framed(QUERY, encoding)
    end = message.index(b"\r\n\r\n")
    splits = [[message[:i], message[i:]] for i in {*range(1, len(message), 11), *range(end, end + 8)}]
    for pieces in [[message], *splits, [message[i : i + 1] for i in range(len(message))]]:
        answer = talk(strict.url, pieces)
        assert statuses(answer) == [200], answer
        assert b'"matches"' in answer


@pytest.mark.parametrize("encoding", ["length", "chunked"])
@pytest.mark.parametrize("method", METHODS)
def test_a_body_is_never_executed(strict, victim, method, encoding):
    for offer, apart in itertools.product(OFFERS.values(), (False, True)):
        message = head(method, "/api/v1/collections/other", offer) + framed(INNER, encoding)
        cut = message.index(b"\r\n\r\n") + 4
        answer = talk(strict.url, [message[:cut], message[cut:]] if apart else [message])
        assert len(statuses(answer)) <= 1, answer


@pytest.mark.parametrize("target", ["/", "127.0.0.1:80", "http://127.0.0.1/"])
@pytest.mark.parametrize("offer", [b"", *OFFERS.values()])
def test_connect_is_refused_and_its_body_not_executed(strict, victim, target, offer):
    message = head("CONNECT", target, offer, close=False)
    for body in (b"\r\n" + INNER, framed(INNER, "length"), framed(INNER, "chunked")):
        cut = body.index(b"\r\n\r\n") + 4 if body[:2] != b"\r\n" else 2
        for pieces in ([message + body], [message + body[:cut], body[cut:]]):
            assert statuses(talk(strict.url, pieces)) in ([400], [])


@pytest.mark.parametrize("encoding", ["length", "chunked"])
def test_pipelined_requests_are_answered_in_order(strict, victim, encoding):
    """Some have an offer, a body, or both, and the last one has neither."""
    offers = [OFFERS["websocket"], OFFERS["java"], b"", OFFERS["other"]]
    bodies = [QUERY, INNER, QUERY, INNER]
    messages = [
        head("POST", SEARCH, offer, close=False) + framed(body, encoding)
        for offer, body in zip(offers, bodies, strict=True)
    ]
    bare = [head("GET", "/healthz", offer, close=False) + b"\r\n" for offer in (OFFERS["other"], OFFERS["java"])]
    message = b"".join([*bare, *messages, head("GET", "/healthz", b""), b"\r\n"])
    for size in (len(message), 100, 7, 1):
        answer = talk(strict.url, [message[i : i + size] for i in range(0, len(message), size)])
        assert statuses(answer) == [200, 200, 200, 400, 200, 400, 200], answer
        assert b"upgrade" not in answer.lower()


def test_a_client_that_leaves_while_its_next_request_waits_is_no_error(strict, image_files, caplog):
    body = json.dumps({"images": [base64.b64encode(image_files[0].read_bytes()).decode()] * 8}).encode()
    message = head("POST", "/api/v1/embed", b"", close=False) + framed(body, "length")
    for _ in range(5):
        with socket.create_connection((httpx.URL(strict.url).host, httpx.URL(strict.url).port)) as connection:
            connection.sendall(message * 2)
            time.sleep(0.01)
    until(lambda: strict.engine.in_work == 0)
    assert httpx.get(f"{strict.url}/healthz", timeout=60).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
