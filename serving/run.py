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

import httptools
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from nnclr_hub.workbench.source_folders import SourceFolders

from .settings import Settings
from .telemetry import configure_logging, configure_tracing

log = logging.getLogger(__name__)
KEEP_ALIVE_S = 75  # longer than clients keep an idle connection: a client must not send on one that we just closed
# less than Python's default of 0.005, so that threads that compute yield to the event loop sooner; with 0.0005, p99
# next to heavy searches was the same, and threads took the lock from each other more often
SWITCH_S = 0.002
GRACE_S = 5  # after the deadline of the last request
LAST_REQUEST_S = 0.5  # for requests that were sent before the client could know that the connection closes
MAX_HEAD = 64 * 1024  # bytes of a head that is not complete; one that arrives as a whole may be a little longer
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


class RequestParser:
    """httptools' HttpRequestParser, which ignores every offer to change the protocol.

    httptools ends a message at its head if the head has `Upgrade`, and reads what follows as the next message: the body
    of such a request would be executed as a request. Here the head is parsed again without that header, so the same
    parser reads the body as it reads every other one. uvicorn's other parser, h11, does not have this fault, but needs
    87 us of CPU time for a small request instead of 49.

    The protocol must ignore `on_headers_complete` and `on_message_complete` while `is_offer()`: the head is read
    again.

    Args:
        protocol: has the callbacks of httptools, `url`, and `headers` as a list of names and values.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._incomplete = 0  # bytes since the last head or message was complete
        self._start()

    def _start(self) -> None:
        self._parser = httptools.HttpRequestParser(self._protocol)
        # as uvicorn does: otherwise a request that is pipelined after the last one would lose the answer of that one
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.get_http_version = self._parser.get_http_version
        self.get_method = self._parser.get_method
        self.should_keep_alive = self._parser.should_keep_alive
        self.is_offer = self._parser.should_upgrade

    def should_upgrade(self) -> bool:
        return False

    def feed_data(self, data: bytes) -> None:
        """Parse the next bytes of the connection.

        Raises:
            httptools.HttpParserError: the bytes are not a request, are a CONNECT, which has no body, or are more of a
                head than MAX_HEAD. Without that limit, a client without a key could fill the memory.
        """
        progress = self._protocol.progress
        self._parse(data)
        self._incomplete = 0 if self._protocol.progress != progress else self._incomplete + len(data)
        if self._incomplete > MAX_HEAD:
            raise httptools.HttpParserError("The head of the request is too long.")

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)  # a slice of it copies nothing
        while True:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                rest = rest[offer.args[0] :]
            method = self._parser.get_method()
            if method == b"CONNECT":
                raise httptools.HttpParserError("This server is not a proxy.")
            head = [b"%s %s HTTP/%s" % (method, self._protocol.url, self._parser.get_http_version().encode())]
            head += [b"%s: %s" % one for one in self._protocol.headers if one[0] != b"upgrade"]
            self._start()
            self._parser.feed_data(b"\r\n".join([*head, b"", b""]))


class JoinedWrites:
    """A transport that sends the head of a response together with the first part of its body.

    A system call for each costs more than encoding a small answer.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            asyncio.get_running_loop().call_soon(self.flush)  # unless a part of the body comes first
            return
        # uvloop raises where asyncio ignores the bytes. uvicorn does not see that a client leaves whose next request
        # waits, because it does not read from it.
        if not self._transport.is_closing():
            self._transport.write(data)

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with these two. Limits on sockets and slow clients are the reverse proxy's.

    progress: increases with each complete head, part of a body, and message.
    """

    progress = 0
    _in_body = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast(Any, JoinedWrites(transport)))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = cast(Any, RequestParser(self))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # a trailer must not become a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.progress += 1
        if not self.parser.is_offer():
            self._in_body = True
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.progress += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.progress += 1
        if not self.parser.is_offer():
            self._in_body = False
            super().on_message_complete()


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
