"""Measures what one request costs a server process, from outside: CPU, bytes, memory, and turns of the event loop.

cost = Meter(server.url, server.pid).cost(Request("GET", "/api/v1/collections"))
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

JSON = "application/json"
POLL_S = 0.01
IDLE_SHARE = 0.4  # of one core; an idle server that is polled uses less
IDLE_S = 0.15
PATIENCE_S = 240.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """What a request did cost.

    status: of its answer; 0 without one.
    cpu_s: CPU seconds of the server and its children, until it is idle again.
    answer: bytes.
    turn_s: most CPU seconds of the event loop's thread during one request for /healthz: how long a turn of the loop
        takes, however busy the machine is.
    memory: bytes by which the peak of the resident memory grew.
    """

    status: int
    cpu_s: float
    answer: int
    turn_s: float
    memory: int


@dataclass(frozen=True)
class Request:
    """One request. `body` makes it, because a large one should not stay in memory."""

    method: str
    path: str
    body: Callable[[], bytes] = bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": JSON})


class Meter:
    """Reads the cost of requests to a server process from outside.

    Args:
        url: of the server.
        pid: of its process, whose children count too.
    """

    def __init__(self, url: str, pid: int) -> None:
        parts = urlsplit(url)
        self.url = url
        self._address = (parts.hostname or "", parts.port or 80)
        self._pid = pid

    def cost(self, request: Request) -> Cost:
        """Send a request and return its cost, when the server is idle again."""
        body = request.body()
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # start a new peak
        memory, cpu = self._memory("VmRSS"), self._cpu()
        with self.polled() as turns:
            status, size = self._send(request, body)
            self._wait_until_idle()
        memory = max(0, self._memory("VmHWM") - memory)
        return Cost(status, self._cpu() - cpu, size, max(turns), memory)

    def _send(self, request: Request, body: bytes) -> tuple[int, int]:
        """Return the status, and the bytes of the answer without its head."""
        head = [f"{request.method} {request.path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        head += [f"{name}: {value}" for name, value in request.headers.items()] if body else []
        head += [f"Content-Length: {len(body)}"] if body or request.method != "GET" else []
        with socket.create_connection(self._address, PATIENCE_S) as connection:
            sending = threading.Thread(target=_send_all, args=(connection, "\r\n".join([*head, "", ""]).encode(), body))
            sending.start()
            start, size = b"", 0
            with suppress(ConnectionResetError):  # a server may close while the client still sends
                while data := connection.recv(1 << 20):
                    start = start if b"\r\n\r\n" in start else start + data
                    size += len(data)
            sending.join()
        answered = start.partition(b"\r\n\r\n")[0]
        return int(answered.split(b" ", 2)[1]) if answered else 0, size - len(answered) - 4

    @contextmanager
    def polled(self) -> Iterator[list[float]]:
        """Request /healthz all the time in a thread; yield the CPU seconds of the loop until each answer.

        A turn that began before the request was sent counts as well, because the CPU time is read after an answer.
        """
        turns, stopping = [0.0], threading.Event()

        def poll() -> None:
            connection = HTTPConnection(*self._address, timeout=PATIENCE_S)
            cpu = self._loop_cpu()
            while not stopping.wait(POLL_S):
                before = cpu
                connection.request("GET", "/healthz")
                ok = connection.getresponse().read() == b'{"status":"ok"}'
                cpu = self._loop_cpu()
                turns.append(cpu - before if ok else PATIENCE_S)
            connection.close()

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield turns
        finally:
            stopping.set()
            thread.join()

    def _wait_until_idle(self) -> None:
        """Wait until the server has used little CPU for a while: work may continue after the answer."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            before = self._cpu()
            time.sleep(IDLE_S)
            if self._cpu() - before < IDLE_SHARE * IDLE_S:
                return

    def _cpu(self) -> float:
        """CPU seconds of the process, and of its children."""
        total = 0
        for pid in [self._pid, *_children(self._pid)]:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue  # it has just ended
            total += sum(map(int, fields[11:15] if pid == self._pid else fields[11:13]))
        return total / _TICKS

    def _loop_cpu(self) -> float:
        """CPU seconds of the main thread, which runs the event loop."""
        return int(Path(f"/proc/{self._pid}/task/{self._pid}/schedstat").read_text().split()[0]) / 1e9

    def _memory(self, name: str) -> int:
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise KeyError(name)


def _send_all(connection: socket.socket, head: bytes, body: bytes) -> None:
    try:
        connection.sendall(head)
        connection.sendall(body)
    except OSError:
        pass  # refused before the end of the body


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return found + [inner for child in found for inner in _children(child)]
