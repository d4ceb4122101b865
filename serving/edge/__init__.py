"""Optional HTTP hardening that a reverse proxy also does, for servers that clients reach directly.

    connection_limits.py   size and time of request heads, unread responses, number of connections
    url_fetcher.py         images by web address, without reaching the internal network
    limits.py              size and pace of request bodies, their memory; requests and images per minute and caller

`install` activates them. The routes import only the types of `url_fetcher` and `charge_images`.
"""

from __future__ import annotations

from fastapi import FastAPI

from ..settings import Settings
from .connection_limits import LimitedProtocol
from .limits import EdgeLimits
from .url_fetcher import Fetcher


def install(app: FastAPI, settings: Settings) -> None:
    """Add the limits to an app. Call it before access control is added, which must be the outer layer."""
    app.add_middleware(EdgeLimits, settings=settings)
    app.state.http_protocol = LimitedProtocol
    if settings.allow_urls:
        app.state.fetcher = Fetcher(settings, metrics=app.state.metrics)
