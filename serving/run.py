"""The server process: uvicorn around the app."""

from __future__ import annotations

import signal

import uvicorn
from fastapi import FastAPI

from .settings import Settings

DRAIN_S = 30


def run(app: FastAPI, settings: Settings) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes what is in work and returns."""
    # uvicorn raises the signal again when it is done, which must not end the program before the store is closed
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        timeout_graceful_shutdown=DRAIN_S,
    )
