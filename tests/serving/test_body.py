"""Malicious bodies and heads, sent to a real server byte by byte; afterwards it is still ready."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from rest_requests import talk
from starlette.datastructures import Headers
from starlette.types import Message

from nnclr_hub.errors import Overloaded, RequestTooSlow
from serving.limits import BodyLimits

pytestmark = pytest.mark.usefixtures("well_afterwards")

FORM = b"Content-Type: multipart/form-data; boundary=b\r\n"
EMBED = b"POST /api/v1/embed HTTP/1.1\r\nHost: 127.0.0.1\r\n" + FORM
PUT = b"PUT /api/v1/collections/c/items HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
FIELD = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\nx\r\n'


def chunked(piece: bytes, times: int) -> Iterator[bytes]:
    for _ in range(times):
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


# ---- the body


@pytest.mark.parametrize("head", [EMBED, PUT])
def test_a_chunked_body_is_counted(strict, head):
    """Such a body has no Content-Length."""
    start = b"Transfer-Encoding: chunked\r\n\r\n" + (b"26\r\n" + FIELD[:36] + b'f"\r\n' if head is EMBED else b"")
    answer = talk(strict.url, [head + start, *chunked(b" " * 50_000, 60)], whole=False)
    assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    if head is PUT:
        assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("head", [EMBED, PUT])
@pytest.mark.parametrize("length", [2_000_001, 10**12, 10**18])
def test_a_content_length_above_the_limit_is_refused_at_once(strict, head, length):
    assert talk(strict.url, [head + b"Content-Length: %d\r\n\r\n" % length], whole=False).startswith(b"HTTP/1.1 413")


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
def test_a_head_that_two_servers_could_read_differently_is_refused(strict, headers):
    """Otherwise a request could be smuggled past a proxy in the body of another one."""
    smuggled = b"abcGET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    assert talk(strict.url, [PUT + headers + b"\r\n" + smuggled], whole=False).startswith(b"HTTP/1.1 400")


def test_a_silent_client_is_answered_408(model, tmp_path, serve):
    for server in serve(model, tmp_path / "store", body_idle_s=0.3):
        answer = talk(server.url, [PUT + b"Content-Length: 1000\r\n\r\n[1,"], whole=False)
        assert answer.startswith(b"HTTP/1.1 408")
        assert RequestTooSlow.code.encode() in answer


@pytest.mark.parametrize("pause", [0.01, None])
def test_a_body_that_never_pauses_for_long_has_a_limit_on_its_time(pause):
    """None: a part is here whenever it is wanted, so no timeout can end the wait for it."""
    limits = BodyLimits(max_bytes=1000, idle_s=60, total_s=0.01, permits=1000)

    async def drip() -> Message:
        if pause is not None:
            await asyncio.sleep(pause)
        return {"type": "http.request", "body": b" " if pause else b"", "more_body": True}

    async def use() -> None:
        with limits.limited(drip, Headers()) as receive:
            for _ in range(200_000):  # more than a second
                await receive()

    with pytest.raises(RequestTooSlow):
        asyncio.run(use())


# ---- all bodies together


class Body:
    """A body of ready pieces; the last one is followed by silence."""

    def __init__(self, size: int, pieces: int) -> None:
        self.size, self.pieces, self.received = size, pieces, 0
        self.headers = Headers({"content-length": str(size * pieces)})

    async def receive(self) -> Message:
        if self.received == self.pieces:
            await asyncio.Event().wait()
        self.received += 1
        return {"type": "http.request", "body": b"x" * self.size, "more_body": True}


def test_the_memory_of_all_bodies_is_limited():
    """The bodies of all clients together stay below the limit in the settings."""
    limits = BodyLimits(max_bytes=1000, idle_s=60, total_s=60, permits=2000)

    async def use():
        for _ in range(3):  # the permits come back each time
            with ExitStack() as held:
                bodies = [Body(900, 1) for _ in range(3)]
                receives = [held.enter_context(limits.limited(one.receive, one.headers)) for one in bodies]
                for receive in receives[:2]:
                    await receive()
                with pytest.raises(Overloaded):
                    await receives[2]()

    asyncio.run(use())


def test_an_ordinary_request_does_not_wait_for_all_large_bodies():
    limits = BodyLimits(max_bytes=10**8, idle_s=60, total_s=60, permits=10**9)
    bodies = [Body(200_000, 50) for _ in range(20)]

    async def upload(body: Body) -> None:
        with limits.limited(body.receive, body.headers) as receive:
            while True:
                await receive()

    async def use() -> int:
        uploads = [asyncio.create_task(upload(body)) for body in bodies]
        for _ in range(10):  # cycles of the event loop, as many as an ordinary request takes
            await asyncio.sleep(0)
        received = sum(body.received for body in bodies)
        while sum(body.received for body in bodies) < 20 * 20:
            await asyncio.sleep(0.01)
        for one in uploads:
            one.cancel()
        await asyncio.wait(uploads)
        assert min(body.received for body in bodies) > 10  # they take turns
        return received

    assert asyncio.run(use()) <= 10


def test_a_head_below_the_limit_is_read(strict):
    answer = talk(
        strict.url, [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 60_000 + b"\r\n\r\n"], whole=False
    )
    assert answer.startswith(b"HTTP/1.1 200")


def test_responses_do_not_name_the_server_software(strict):
    for pieces in (
        [b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"],
        [b"nonsense\r\n\r\n"],
        [b"GET /x HTTP/1.1\r\n\r\n"],
    ):
        answer = talk(strict.url, pieces, whole=False).lower()
        assert b"server:" not in answer
        assert b"uvicorn" not in answer
