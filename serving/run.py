"""The server process: uvicorn around the app."""

from __future__ import annotations

import signal

import uvicorn
from fastapi import FastAPI

from .logs import configure_logging
from .security.protocol import GuardedProtocol
from .settings import Settings

DRAIN_S = 30


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves the app: it tells no name of itself, and trusts no proxy that the settings do not name."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=GuardedProtocol,
        ws="none",
        log_config=None,  # our own, for everything
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=DRAIN_S,
    )


def run(app: FastAPI, settings: Settings) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes what is in work and returns."""
    configure_logging(settings.log_format)
    # uvicorn raises the signal again when it is done, which must not end the program before the store is closed
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(server_config(app, settings)).run()
