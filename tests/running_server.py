"""A real server on a real port, for tests of REST and of the web app."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from app.web_app import mount_web_app
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Workbench
from serving.api import create_app
from serving.engine import Engine
from serving.models import Engines
from serving.run import Server, server_config
from serving.settings import Settings


class Running:
    """The address of a server, and its parts."""

    def __init__(self, port: int, engines: Engines, bench: Workbench, app: FastAPI) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.app = app
        self.engines = engines
        self.bench = bench

    @property
    def engine(self) -> Engine:
        """The only engine that is loaded."""
        (engine,) = self.engines._memory.engines
        return engine


def start(model: Path, store: Path, *, page: bool = False, **settings) -> Iterator[Running]:
    """Serve until the generator is closed. A `read_only` store must exist."""
    port = free_port()
    options = Settings(port=port, **settings)
    with open_store(str(store), read_only=options.read_only) as opened:
        engines = Engines(str(model), options)
        bench = Workbench(engines, opened, originals_bytes=options.originals_bytes)
        app = create_app(options, engines, bench)
        if page:
            mount_web_app(app)
        server = Server(server_config(app, options))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait(f"http://127.0.0.1:{port}/readyz")
            yield Running(port, engines, bench, app)
        finally:
            server.should_exit = True
            thread.join()
            engines.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait(url: str) -> None:
    with httpx.Client(timeout=5) as client:  # a new client would load the CA certificates each time
        for _ in range(2400):
            try:
                if client.get(url).status_code == 200:
                    return
            except httpx.TransportError:
                pass  # the server does not listen yet
            time.sleep(0.05)
    pytest.fail(f"{url} did not become ready")
