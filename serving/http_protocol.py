"""uvicorn's HTTP protocol, which ignores every offer to change the protocol, and trailers.

httptools ends a message at its head if the head has `Upgrade`, and reads what follows as the next message: the body of
such a request would be executed as a request. Here the head is parsed again without that header, so the same parser
reads the body as it reads every other one.

uvicorn's other parser, h11, does not have this fault, but needs 87 us of CPU time for a small request instead of 49.
"""

from __future__ import annotations

from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class RequestParser:
    """httptools' HttpRequestParser without upgrades.

    The protocol must ignore `on_headers_complete` and `on_message_complete` while `is_offer()`: the head is read
    again.

    Args:
        protocol: has the callbacks of httptools, `url`, and `headers` as a list of names and values.
    """

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
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
            httptools.HttpParserError: the bytes are not a request, or are a CONNECT, which has no body.
        """
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


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with this parser. Limits on sockets, heads and slow clients are the reverse proxy's."""

    _in_body = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = cast(Any, RequestParser(self))

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # a trailer must not become a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.parser.is_offer():
            self._in_body = True
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.is_offer():
            self._in_body = False
            super().on_message_complete()
