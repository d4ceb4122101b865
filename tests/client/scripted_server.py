"""A server with scripted responses, for cases that a real server produces rarely or never."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Response:
    """One response: a status with JSON or with text; `hang_up` closes the connection without a response."""

    status: int = 200
    body: Any = None
    text: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False
    drip_s: float = 0.0  # seconds between the bytes of the response


class Scripted:
    """The URL of the server, the remaining responses, and the received requests: (method, path, headers)."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.script: list[Response] = []
        self.requests: list[tuple[str, str, dict[str, str]]] = []


def problem(status: int, code: str, detail: str = "A sentence.", **more: Any) -> Response:
    """Return an RFC 9457 error response."""
    headers = {"Content-Type": "application/problem+json", **more.pop("headers", {})}
    return Response(status, {"status": status, "code": code, "detail": detail, **more}, headers=headers)


@contextmanager
def scripted() -> Iterator[Scripted]:
    """Run a server that sends the responses in order and repeats the last one."""
    stopping = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            state.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            response = state.script.pop(0) if len(state.script) > 1 else state.script[0]
            if response.hang_up:
                self.close_connection = True
                return
            body = response.text.encode() if response.text is not None else json.dumps(response.body).encode()
            self.send_response(response.status)
            for name, value in {"Content-Type": "application/json", **response.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            for i in range(0, len(body), 1 if response.drip_s else len(body) or 1):
                if stopping.wait(response.drip_s):
                    return
                try:
                    self.wfile.write(body[i : i + (1 if response.drip_s else len(body))])
                except OSError:  # the client closed the connection
                    return

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None: ...

    with Server(("127.0.0.1", 0), Handler) as server:
        state = Scripted(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield state
        finally:
            stopping.set()
            server.shutdown()
            thread.join()
