"""SIGTERM under load: accepted requests get whole responses, later ones are refused, and the process exits cleanly."""

import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.server_process import ServerProcess
from nnclr_hub import Client
from nnclr_hub.store import open_store

CALLERS = 24
ACCEPTED = 4
BOUNDARY = "part"
Heard = tuple[float, float, str, int]  # start and end of a request, its outcome, its status


def message(path: str, image: bytes) -> bytes:
    """Build a request with one image that closes the connection afterwards."""
    body = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    ).encode()
    body += image + f"\r\n--{BOUNDARY}--\r\n".encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def ask(port: int, request: bytes) -> tuple[str, int]:
    """Send a request on a new connection.

    Returns:
        ("answered", status) for a whole response; ("refused", 0) if nothing listens; ("unheard", 0) for a connection
        that ended before the first byte of a response; ("cut", status) for part of a response.
    """
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    except ConnectionRefusedError:
        return "refused", 0
    with connection:
        return hear(connection, request)


def hear(connection: socket.socket, rest: bytes) -> tuple[str, int]:
    """Send the rest of a request, and read until the end of the connection."""
    answer = b""
    try:
        connection.sendall(rest)
        while part := connection.recv(65536):
            answer += part
    except ConnectionError:
        pass  # the received part shows how far it got
    if not answer:
        return "unheard", 0
    head, ended, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    whole = bool(ended) and len(lengths) == 1 and len(body) == int(lengths[0].split(b":")[1])
    return ("answered" if whole else "cut"), status


class Expectant:
    """A request that the server accepted with 100 Continue. It sends its body when the server shuts down."""

    def __init__(self, port: int, request: bytes) -> None:
        head, _, self._body = request.partition(b"\r\n\r\n")
        self._outcome: tuple[str, int] | None = None
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        while b"\r\n\r\n" not in (said := self._connection.recv(4096, socket.MSG_PEEK)):
            assert said, "the server closed a connection that it should have accepted"
        assert self._connection.recv(len(said)).startswith(b"HTTP/1.1 100"), said

    def go_on(self) -> None:
        with self._connection:
            self._outcome = hear(self._connection, self._body)

    def outcome(self) -> tuple[str, int]:
        return self._outcome or ("unheard", 0)


def load(port: int, request: bytes, stop: threading.Event, heard: list[Heard]) -> None:
    """Send requests until the server refuses them; record the times and the outcome of each."""
    while not stop.is_set():
        begun = time.monotonic()
        outcome, status = ask(port, request)
        heard.append((begun, time.monotonic(), outcome, status))
        if outcome == "refused":
            return


def run(
    server: ServerProcess, image_files: list[Path]
) -> tuple[float, int, list[tuple[float, float, str, int]], list[tuple[str, int]]]:
    """Send requests, SIGTERM the server, and return all outcomes."""
    with Client(server.url) as client:
        client.collections.create("photos")
    requests = [message("/api/v1/embed", image_files[0].read_bytes())] * (CALLERS // 2)
    requests += [message("/api/v1/collections/photos/items", path.read_bytes()) for path in image_files[: CALLERS // 2]]
    stop, heard = threading.Event(), []
    callers = [threading.Thread(target=load, args=(server.port, request, stop, heard)) for request in requests]
    for caller in callers:
        caller.start()
    waiting = [Expectant(server.port, requests[i]) for i in range(ACCEPTED)]
    signaled = time.monotonic()
    threading.Timer(0.5, lambda: [one.go_on() for one in waiting]).start()
    code = server.terminate()
    stop.set()
    for caller in callers:
        caller.join()
    return signaled, code, heard, [one.outcome() for one in waiting]


@pytest.mark.slow
def test_accepted_requests_are_answered_and_the_store_is_closed(model, image_files, tmp_path):
    with ServerProcess(tmp_path / "store", model=str(model)) as server:
        signaled, code, heard, accepted = run(server, image_files)
        log = server.log.read_text()
    outcomes = Counter((outcome, status) for *_, outcome, status in heard)
    assert code == 0, log
    assert "Traceback" not in log
    assert outcomes["answered", 200], outcomes
    assert {outcome for outcome, _ in outcomes} <= {"answered", "refused", "unheard"}, outcomes
    assert {status for outcome, status in outcomes if outcome == "answered"} <= {200, 429, 503}, outcomes
    # a connection that the kernel accepted and the server never saw ends without a response, only after the signal
    assert all(ended > signaled for _, ended, outcome, _ in heard if outcome == "unheard")
    assert accepted == [("answered", 200)] * ACCEPTED, accepted
    check_store(tmp_path / "store")


def check_store(folder: Path) -> None:
    """Check that the store was closed in order: no write-ahead log, no lock, nothing to rebuild."""
    assert [path for path in folder.rglob("*-wal") if path.stat().st_size] == []
    with open_store(str(folder)) as store:
        collection = store.get("photos")
        assert collection.info().state == "ready"
        assert collection.verify().ok
        assert collection.count() == CALLERS // 2
