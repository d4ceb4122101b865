"""A real server on a real port, for tests of REST and of the web app."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from waiting import until_served

from app.web_app import mount_web_app
from nnclr_hub.store import open_store
from nnclr_hub.workbench import Workbench
from serving.api import create_app
from serving.engine import Engine
from serving.models import Engines
from serving.run import Server, server_config
from serving.settings import Settings


class QuickServer(Server):
    """Stops at once: no client of a test still has a request on its way."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.config.app.state.jobs.close_streams()
        await uvicorn.Server.shutdown(self, sockets)


class Running:
    """The address of a server, and its parts."""

    def __init__(self, port: int, engines: Engines, bench: Workbench, app: FastAPI) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.app = app
        self.engines = engines
        self.bench = bench

    @property
    def engine(self) -> Engine:
        """The engine of the default model."""
        return self.engines.get()


def start(model: Path, store: Path, *, page: bool = False, **settings) -> Iterator[Running]:
    """Serve until the generator is closed. A `read_only` store must exist."""
    listening = socket.create_server(("127.0.0.1", 0))  # held from now on: another test could take a free port
    port = listening.getsockname()[1]
    options = Settings(port=port, **settings)
    with listening, open_store(str(store), read_only=options.read_only) as opened:
        engines = Engines(str(model), options)
        bench = Workbench(
            engines,
            opened,
            originals_bytes=options.originals_bytes,
            source_folders=options.source_folders,
            backup_to=options.backup_to,
        )
        app = create_app(options, engines, bench)
        if page:
            mount_web_app(app)
        server = QuickServer(server_config(app, options))
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            until_served(f"http://127.0.0.1:{port}/readyz")
            yield Running(port, engines, bench, app)
        finally:
            server.should_exit = True
            thread.join()
            engines.close()
