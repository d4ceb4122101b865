"""The server process: uvicorn around the app."""

from __future__ import annotations

import math
import signal
from types import FrameType

import uvicorn
from fastapi import FastAPI

from .security.protocol import GuardedProtocol
from .settings import Settings

GRACE_S = 5  # beyond the last request's deadline


class _Server(uvicorn.Server):
    """Ends gracefully at the first signal, and at once at the second."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        self.should_exit = True  # uvicorn would also raise the signal again, before the store is closed


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves the app: it tells no name of itself, and trusts no proxy that the settings do not name."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=GuardedProtocol,
        ws="none",
        log_level="warning",
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        access_log=False,
        timeout_graceful_shutdown=math.ceil(settings.deadline_s) + GRACE_S,
    )


def run(app: FastAPI, settings: Settings) -> None:
    """Serves until SIGTERM or Ctrl-C; then takes no new requests, answers all that had begun to come, and returns.

    A second signal ends the process at once, which the store survives like any other crash.
    """
    _Server(server_config(app, settings)).run()
