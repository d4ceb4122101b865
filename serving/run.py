"""The server process: uvicorn around the app."""

from __future__ import annotations

import logging
import math
import signal
import socket
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from nnclr_hub.workbench.source_folders import SourceFolders

from . import garbage
from .logs import configure_logging
from .request_priority import PriorityLoop
from .settings import Settings

log = logging.getLogger(__name__)
KEEP_ALIVE_S = 75  # longer than clients keep an idle connection, or both may let go of it at once
SWITCH_S = 0.0005  # what computes in Python gives way ten times as soon as by default: to requests, mostly
GRACE_S = 5  # beyond the last request's deadline


class Server(uvicorn.Server):
    """Ends gracefully at the first signal, and at once at the second.

    Gracefully: nobody new is let in, and every request that has begun is answered as at any other time.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        self.should_exit = True  # uvicorn would also raise the signal again, before the store is closed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.jobs.close_streams()  # streams that would go on for ever
        await super().shutdown(sockets)


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves the app: it tells no name of itself, and trusts no proxy that the settings do not name."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=getattr(app.state, "http_protocol", "auto"),  # set by `edge`
        loop=f"{PriorityLoop.__module__}:{PriorityLoop.__name__}",
        ws="none",
        log_config=None,  # our own, for everything
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        limit_concurrency=settings.connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.deadline_s) + GRACE_S,
    )


def settle(app: FastAPI, settings: Settings) -> None:
    """Makes the process one that serves the app and does nothing else."""
    configure_logging(settings.log_format)
    warn_of_missing(settings)
    sys.setswitchinterval(SWITCH_S)
    app.state.on_loaded = garbage.keep


def run(app: FastAPI, settings: Settings) -> None:
    """Serves until SIGTERM or Ctrl-C; then takes no more work, answers all that it took, and returns.

    A second signal ends the process at once, which the store survives like any other crash.
    """
    settle(app, settings)
    try:
        Server(server_config(app, settings)).run()
    finally:
        garbage.let_go()  # or libraries take what is left at the exit for leaks, and say so


def warn_of_missing(settings: Settings) -> None:
    """Logs each source folder that is not there: a disk may come later, but a slip of the pen never does."""
    for folder in SourceFolders(settings.source_folders).missing:
        log.warning(
            "the source folder %s is not there, so nothing of it is read until it is: mount it, or mend "
            "NNCLR_SOURCE_FOLDERS",
            folder,
        )
