"""A web server on this machine to fetch images from."""

import asyncio
import ipaddress
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nnclr_hub.errors import InvalidRequest
from serving import url_fetcher
from serving.request_bodies import decode_text
from serving.settings import Settings
from serving.url_fetcher import Fetcher

LOOPBACK = ipaddress.ip_address("127.0.0.1")


class Site(ThreadingHTTPServer):
    """Answer by path, and record the requests."""

    def __init__(self, image: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.image = image
        self.requests: list[tuple[str, str]] = []  # (Host, path)
        self.go_on = threading.Event()  # for requests that are held

    @property
    def port(self) -> int:
        return self.server_address[1]


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.requests.append((self.headers["Host"], self.path))
        kind, _, rest = self.path.lstrip("/").partition("/")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", rest)
            self.end_headers()
        elif kind == "status":
            self.send_error(int(rest))
        elif kind == "nowhere":  # a redirect without a target
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
        elif kind == "held":
            self.server.go_on.wait(120)
        elif kind == "drip":
            while not self.server.go_on.wait(0.05):
                self.wfile.write(b"x")
        else:
            self.wfile.write(self.server.image)

    def handle(self) -> None:
        with suppress(OSError):  # the fetcher closed the connection
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def fetcher(site: Site | None = None, names: dict[str, list[str]] | None = None, **settings) -> Fetcher:
    """Make a fetcher for which 127.0.0.1 is public. It is the address of every name that is not in `names`."""

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


GENERIC = f"input[0] {url_fetcher.NOT_FETCHED}"
