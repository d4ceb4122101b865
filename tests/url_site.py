"""A site on this machine that images are fetched from."""

import asyncio
import ipaddress
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nnclr_hub.errors import InvalidRequest
from serving.edge import url_fetcher
from serving.edge.url_fetcher import Fetcher
from serving.request_bodies import decode_text
from serving.settings import Settings

LOOPBACK = ipaddress.ip_address("127.0.0.1")


class Site(ThreadingHTTPServer):
    """Answers by path, and remembers what it was asked."""

    def __init__(self, picture: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.picture = picture
        self.asked: list[tuple[str, str]] = []  # (Host, path)

    @property
    def port(self) -> int:
        return self.server_address[1]


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append((self.headers["Host"], self.path))
        kind, _, rest = self.path.lstrip("/").partition("/")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", rest)
            self.end_headers()
        elif kind == "status":
            self.send_error(int(rest))
        elif kind == "nowhere":  # a redirect that does not say where
            self.send_response(int(rest))
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.send_response(200)
            self.end_headers()
            self._body(kind)

    def _body(self, kind: str) -> None:
        if kind == "endless":
            while True:
                self.wfile.write(bytes(100_000))
        elif kind == "slow":
            time.sleep(1.5)
        elif kind == "drip":
            for _ in range(30):
                self.wfile.write(b"x")
                time.sleep(0.05)
        else:
            self.wfile.write(self.server.picture)

    def handle(self) -> None:
        with suppress(OSError):  # the fetcher had enough
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def fetcher(site: Site | None = None, names: dict[str, list[str]] | None = None, **settings) -> Fetcher:
    """One for which this machine is the open internet, and every name is its own but those that are given."""

    async def resolve(host: str, port: int) -> list[url_fetcher.IpAddress]:
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            return [ipaddress.ip_address(one) for one in (names or {}).get(host, ["127.0.0.1"])]

    ports = (80, 443, site.port) if site else (80, 443)
    return Fetcher(Settings(url_ports=ports, **settings), resolve, lambda address: address == LOOPBACK)


def fetch(fetcher: Fetcher, *urls: str) -> list[bytes]:
    found = asyncio.run(fetcher.fetch_each(urls))
    return [decode_text(url, "input[0]", found) for url in urls]


def refused(fetcher: Fetcher, url: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        fetch(fetcher, url)
    return str(caught.value)


GENERIC = "input[0] could not be fetched: check its address, or send the image itself."
