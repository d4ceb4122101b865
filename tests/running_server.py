"""A real server on a real port, for the tests of REST and of the page."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from app.mount import mount_page
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Workbench
from serving.api import create_app
from serving.models import Engines
from serving.run import Server, server_config
from serving.settings import Settings


class Running:
    """A server's address and what is inside it."""

    def __init__(self, port: int, engines: Engines, bench: Workbench, app: FastAPI) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.app = app
        self.engines = engines
        self.bench = bench


def start(model: Path, store: Path, *, page: bool = False, **settings) -> Iterator[Running]:
    """Serves until the generator is closed; a store that is to be served `read_only` must be there."""
    port = free_port()
    chosen = Settings(port=port, **settings)
    with open_store(str(store), read_only=chosen.read_only) as opened:
        engines = Engines(str(model), chosen)
        bench = Workbench(engines, opened)
        app = create_app(chosen, engines, bench)
        if page:
            mount_page(app, bench)
        server = Server(server_config(app, chosen))
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
    for _ in range(400):
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.05)
    pytest.fail(f"{url} did not become ready")
