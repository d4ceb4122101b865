"""The server process: uvicorn around the app."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import math
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from nnclr_hub.workbench.source_folders import SourceFolders

from .http_protocol import GuardedProtocol
from .request_log import configure_logging
from .settings import Settings
from .telemetry import configure_tracing

log = logging.getLogger(__name__)
KEEP_ALIVE_S = 75  # longer than clients keep an idle connection: a client must not send on one that we just closed
SWITCH_S = 0.0005  # a tenth of Python's default: threads that compute yield to the event loop sooner
GRACE_S = 5  # after the deadline of the last request
LAST_REQUEST_S = 0.5  # for requests that were sent before the client could know that the connection closes
HANDSHAKE_S = 0.25  # for connections that were begun, but not yet complete, before the server stopped listening
SO_ATTACH_FILTER = 26  # Linux, asm-generic/socket.h
# In classic BPF, on the TCP header: load the byte of flags, keep SYN and ACK, and drop a packet with SYN alone.
DROP_NEW_CONNECTIONS = (
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


class Server(uvicorn.Server):
    """uvicorn's server, which shuts down gracefully at the first signal and at once at the second.

    Graceful means, in this order:

    1. /readyz answers 503, and every answer closes its connection. Requests are answered as usual for
       NNCLR_DRAIN_S, in which a load balancer stops to send new ones.
    2. The server stops listening. Open connections may still send the request that was on its way.
    3. Idle connections are closed, and requests in progress are answered.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, signal.SIG_DFL)
        self.should_exit = True  # uvicorn would raise the signal again before the store is closed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app = self.config.app
        assert isinstance(app, FastAPI)
        app.state.readiness.stopping = True
        await asyncio.sleep(app.state.settings.drain_s)
        app.state.jobs.close_streams()  # event streams would keep the shutdown waiting for ever
        await self._stop_listening()
        end = time.monotonic() + LAST_REQUEST_S
        while self.server_state.connections and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)

    async def _stop_listening(self) -> None:
        """Close the listening sockets, after the connections that wait there were accepted. Closing resets them."""
        listeners = [socket.socket(fileno=os.dup(one.fileno())) for server in self.servers for one in server.sockets]
        for listener in listeners:
            if ignore_new_connections(listener):
                await asyncio.sleep(HANDSHAKE_S)
        for server in self.servers:
            server.close()
        waiting: list[socket.socket] = []
        for listener in listeners:
            listener.setblocking(False)
            with listener, suppress(BlockingIOError):
                while True:
                    waiting.append(listener.accept()[0])
        for connection in waiting:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)

    def _protocol(self) -> asyncio.Protocol:
        kind = cast(Any, self.config.http_protocol_class)
        return kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)


def ignore_new_connections(listener: socket.socket) -> bool:
    """Let a listening socket ignore new connections, and return whether it does.

    Clients repeat an ignored attempt after a second, and are refused once the socket is closed. Otherwise a connection
    that is complete between the last accept() and close() would be reset, with the request that was sent on it. Linux
    only; elsewhere, and where filters are not permitted, those microseconds remain.
    """
    if sys.platform != "linux":
        return False
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in DROP_NEW_CONNECTIONS))
    program = struct.pack("HP", len(DROP_NEW_CONNECTIONS), ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Configure uvicorn: no Server header, and no trusted proxies except those in the settings."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=GuardedProtocol,
        ws="none",
        log_config=None,  # `configure_logging` formats uvicorn's lines too
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        limit_concurrency=settings.connections,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.deadline_s) + GRACE_S,
    )


def prepare_process(app: FastAPI, settings: Settings) -> None:
    """Configure a process that does nothing but serve the app: its log, thread switching and garbage collection."""
    configure_logging(settings.log_format)
    configure_tracing()
    warn_of_missing(settings)
    sys.setswitchinterval(SWITCH_S)
    app.state.on_loaded = _freeze


def run(app: FastAPI, settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C, then answer the requests in progress and return.

    A second signal ends the process at once, which the store survives like any other crash.
    """
    prepare_process(app, settings)
    try:
        Server(server_config(app, settings)).run()
    finally:
        gc.unfreeze()  # otherwise libraries report frozen objects as leaks at exit


def _freeze() -> None:
    """Exempt all present objects from garbage collection.

    A full collection visits every object of torch, and the event loop waits for it.
    """
    gc.collect()
    gc.freeze()


def warn_of_missing(settings: Settings) -> None:
    """Log each source folder that does not exist. The server starts anyway, because a disk may be mounted later."""
    for folder in SourceFolders(settings.source_folders).missing:
        log.warning(
            "source folder %s does not exist; mount it, or correct NNCLR_SOURCE_FOLDERS",
            folder,
        )
