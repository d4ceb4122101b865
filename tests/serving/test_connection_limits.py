"""Limits on trailers, blank lines, discarded bodies, unread responses and the number of connections."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from http.client import HTTPResponse

import httpx
import pytest
from starlette.responses import Response
from waiting import until

from serving.edge import connection_limits

GET = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(model, tmp_path_factory.mktemp("protocol") / "store", connections=8)


@pytest.fixture(autouse=True)
def ready_afterwards(server) -> Iterator[None]:
    yield
    for _ in range(1000):  # the connections of the test take a moment to close
        if httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200:
            return
        time.sleep(0.05)
    pytest.fail("the server did not become ready again")


def connection_of(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=120)


def response_to(connection: socket.socket, path: bytes, before: bytes = b"") -> tuple[HTTPResponse, bytes]:
    """Return the response to a GET, and its whole body, which may arrive later than the head."""
    connection.sendall(before + GET % path)
    with HTTPResponse(connection) as response:
        response.begin()
        return response, response.read()


CHUNKED = b"POST /v1/embeddings HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("host", [b"127.0.0.1", b"elsewhere.example"], ids=["read", "refused"])
@pytest.mark.parametrize(
    "trailers", [[b"a: " + b"v" * 4000 + b"\r\n"] * 2000, [b"a: ", *[b"v" * 4000] * 2000]], ids=["many", "one"]
)
def test_endless_trailers_are_cut_off(server, host, trailers):
    """Also after the response."""
    sent = 0
    with connection_of(server) as connection:
        connection.sendall(CHUNKED % host + b"2\r\n{}\r\n0\r\n")
        time.sleep(0.1)
        try:
            for piece in trailers:
                connection.sendall(piece)
                sent += len(piece)
        except OSError:
            pass  # cut off
        else:
            pytest.fail(f"{sent} bytes of trailers were read")


def test_trailers_do_not_become_headers(server):
    """A second Host, for example, that access control did not see."""
    got: list[tuple[bytes, bytes]] = []
    inner = server.app.middleware_stack

    async def reading(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        got.extend(scope["headers"])
        await Response(status_code=204)(scope, receive, send)

    server.app.middleware_stack = reading
    try:
        with connection_of(server) as connection:
            connection.sendall(CHUNKED % b"127.0.0.1" + b"0\r\nX-One: y\r\nHost: elsewhere.example\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 204")
    finally:
        server.app.middleware_stack = inner
    assert got == [(b"host", b"127.0.0.1"), (b"transfer-encoding", b"chunked")]


def test_bytes_after_a_response_are_limited(server, monkeypatch):
    monkeypatch.setattr(connection_limits, "MAX_DISCARDED", 500_000)
    chunk = b"%x\r\n%s\r\n" % (60_000, b" " * 60_000)
    sent = 0
    with connection_of(server) as connection:
        connection.sendall(CHUNKED % b"elsewhere.example")
        assert connection.recv(65536).startswith(b"HTTP/1.1 403")
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(chunk)
                sent += len(chunk)
    assert sent < 30_000_000


@pytest.mark.parametrize("after", [b"\r\n", b"\r\n\r\n", b"G"])
def test_a_blank_line_does_not_keep_an_idle_connection_open(server, monkeypatch, after):
    """It stops uvicorn's keep-alive timer without being a request."""
    with connection_of(server) as connection:
        assert response_to(connection, b"/healthz")[0].status == 200
        monkeypatch.setattr(connection_limits, "HEAD_S", 0.3)  # from now on: the request above may take longer
        connection.sendall(after)
        assert connection.recv(65536) == b""


def test_requests_after_blank_lines_are_answered(server):
    with connection_of(server) as connection:
        for _ in range(3):
            assert response_to(connection, b"/healthz", before=b"\r\n")[0].status == 200


# ---- unread responses

LARGE = 20_000_000  # bytes of a response: more than socket buffers hold


@contextlib.contextmanager
def answering(server, piece: int) -> Iterator[None]:
    """Make every response large, sent in pieces of this size."""

    async def sending(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
        for left in range(LARGE - piece, -1, -piece):
            await send({"type": "http.response.body", "body": b" " * piece, "more_body": left > 0})

    inner, server.app.middleware_stack = server.app.middleware_stack, sending
    try:
        yield
    finally:
        server.app.middleware_stack = inner


def read_on(connection: socket.socket, pause_s: float) -> int:
    """Count the bytes until the end of the response or the connection."""
    got = 0
    with contextlib.suppress(ConnectionError):
        while got < LARGE and (data := connection.recv(1_000_000)):
            got += len(data)
            time.sleep(pause_s)
    return got


@pytest.mark.parametrize("piece", [100_000, LARGE], ids=["in pieces", "whole"])
def test_a_client_that_reads_nothing_is_disconnected(server, monkeypatch, piece):
    lost: list[tuple[str, int]] = []
    kind = connection_limits.LimitedProtocol
    connection_lost = kind.connection_lost

    def noting(protocol, error: Exception | None) -> None:
        lost.append(protocol.client)
        connection_lost(protocol, error)

    monkeypatch.setattr(kind, "connection_lost", noting)
    monkeypatch.setattr(connection_limits, "UNREAD_S", 0.2)
    with answering(server, piece), connection_of(server) as connection:
        connection.sendall(GET % b"/")
        until(lambda: connection.getsockname() in lost)
        assert read_on(connection, 0) < LARGE


@pytest.mark.parametrize("piece", [100_000, LARGE], ids=["in pieces", "whole"])
def test_a_slow_reader_gets_the_whole_response(server, monkeypatch, piece):
    """It takes longer than the limit, but never pauses for so long; a busy machine pauses it, hence several limits."""
    read = []
    for limit_s in (0.3, 3.0, 30.0):
        monkeypatch.setattr(connection_limits, "UNREAD_S", limit_s)
        with answering(server, piece), connection_of(server) as connection:
            connection.sendall(GET % b"/")
            read.append(read_on(connection, limit_s / 15))
        if read[-1] >= LARGE:
            return
    pytest.fail(f"only {read} of {LARGE} bytes arrived")


# ---- connections


def test_connections_above_the_limit_get_503_until_others_close(server):
    with contextlib.ExitStack() as held:
        some = [held.enter_context(connection_of(server)) for _ in range(8)]
        for one in some:
            assert response_to(one, b"/healthz")[0].status == 200
        with connection_of(server) as late:
            answer, body = response_to(late, b"/api/v1/collections")
            assert answer.status == 503
            assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
            assert answer.headers["content-type"] == "application/problem+json"
            assert json.loads(body)["code"] == "too_many_connections"
        with connection_of(server) as probe:  # an orchestrator restarts servers that do not answer it
            assert response_to(probe, b"/healthz")[0].status == 200
        some.pop().close()
        until(lambda: accepted(server))


def accepted(server) -> bool:
    with connection_of(server) as one:
        return response_to(one, b"/api/v1/collections")[0].status == 200


def test_idle_connections_do_not_take_the_place_of_a_health_check(server):
    """Of the connections above the limit and its reserve, the oldest idle ones are aborted."""
    with contextlib.ExitStack() as held:
        many = [held.enter_context(connection_of(server)) for _ in range(8 + 2 * connection_limits.EXPLAINED)]
        for _ in range(3):
            with connection_of(server) as probe:
                assert response_to(probe, b"/healthz")[0].status == 200
                assert response_to(probe, b"/api/v1/collections")[0].status == 503
        with contextlib.suppress(ConnectionError):
            assert many[8].recv(1) == b""
        assert response_to(many[0], b"/healthz")[0].status == 200  # it was there before
