"""A server that answers by a script: what ours does only now and then, or never."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Line:
    """One answer: a status with JSON, or text of another kind; `hang_up` ends the connection without a word."""

    status: int = 200
    body: Any = None
    text: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False
    drip_s: float = 0.0  # seconds between the bytes of the answer


class Scripted:
    """Its address, what it has still to say, and what it was asked: (method, path, headers)."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.script: list[Line] = []
        self.asked: list[tuple[str, str, dict[str, str]]] = []


def problem(status: int, code: str, detail: str = "A sentence.", **more: Any) -> Line:
    """An RFC 9457 answer."""
    headers = {"Content-Type": "application/problem+json", **more.pop("headers", {})}
    return Line(status, {"status": status, "code": code, "detail": detail, **more}, headers=headers)


@contextmanager
def scripted() -> Iterator[Scripted]:
    """Answers line by line, the last one for ever."""
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            told.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            line = told.script.pop(0) if len(told.script) > 1 else told.script[0]
            if line.hang_up:
                self.close_connection = True
                return
            body = line.text.encode() if line.text is not None else json.dumps(line.body).encode()
            self.send_response(line.status)
            for name, value in {"Content-Type": "application/json", **line.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for i in range(0, len(body), 1 if line.drip_s else len(body) or 1):
                if stopping.wait(line.drip_s):
                    return
                try:
                    self.wfile.write(body[i : i + (1 if line.drip_s else len(body))])
                except OSError:  # the client has had enough
                    return

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        told = Scripted(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield told
        finally:
            stopping.set()
            server.shutdown()
            thread.join()
