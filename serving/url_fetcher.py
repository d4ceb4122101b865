"""Fetch images by web address, if NNCLR_ALLOW_URLS=1.

A server that fetches addresses that clients choose can be made to call machines that only it can reach (SSRF). So:

- one parser: `httpx.URL` both checks and fetches;
- only http and https, the ports of the settings, no user name, and the domains of the settings if any are listed;
- each name is resolved once and every address of it must be public. The connection goes to the checked address
  while Host, SNI and the certificate keep the name, so a second DNS answer cannot differ (DNS rebinding);
- at most three redirects, each checked like the first address;
- bytes and seconds are limited for all addresses of a request together;
- every failure on the network gives the same message, which tells a port scanner nothing. The log has the reason.

Only faults in the address itself are explained to the client.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx

from nnclr_hub.errors import Overloaded, RequestTooLarge

from .settings import Settings
from .telemetry import Metrics, measured

log = logging.getLogger(__name__)
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Fetched = dict[str, bytes | str]  # by address: the image, or the rest of an error message
NOT_FETCHED = "could not be fetched; check the address, or send the image itself."
MAX_REDIRECTS = 3
MAX_URL = 2048
MAX_FETCHES = 32  # at once, in the whole server
MAX_FETCHES_PER_REQUEST = 8
_ORDINARY = re.compile(r"[!-\[\]-~]+")  # printable ASCII without the backslash, on which parsers disagree
_NAME = re.compile(r"(?=.*[a-z])[a-z0-9_-]+([.][a-z0-9_-]+)*[.]?")
_IPV6_PUBLIC = ipaddress.ip_network("2000::/3")
_IPV6_TUNNELS = tuple(map(ipaddress.ip_network, ("2002::/16", "2001::/32")))  # 6to4 and Teredo carry IPv4 addresses
# 6to4 relays; and IETF assignments, of which Python 3.11 knows only a part, with the metadata address of older clouds
_IPV4_SPECIAL = tuple(map(ipaddress.ip_network, ("192.88.99.0/24", "192.0.0.0/24")))
_RESOLVERS = ThreadPoolExecutor(8, thread_name_prefix="resolve")  # a hanging name server blocks only these


class _NotAllowed(Exception):
    """Raised for an address that must not be fetched. Clients see the message only if the address itself is wrong."""


class _Budget:
    """The bytes that the fetches of one request may still take."""

    def __init__(self, size: int) -> None:
        self.size = self.left = size

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise RequestTooLarge(
                f"The images at these addresses exceed {self.size / 1e6:g} MB together; send fewer at once."
            )


def is_public(address: IpAddress) -> bool:
    """Return whether an address is on the public internet, and not a tunnel, relay or multicast address."""
    if isinstance(address, ipaddress.IPv6Address):
        return address in _IPV6_PUBLIC and address.is_global and not any(address in net for net in _IPV6_TUNNELS)
    special = address.is_multicast or address.is_reserved or any(address in net for net in _IPV4_SPECIAL)
    return address.is_global and not special


async def resolve(host: str, port: int) -> list[IpAddress]:
    """Resolve a name to all of its addresses, in a thread."""
    lookup = asyncio.get_running_loop().run_in_executor(
        _RESOLVERS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    return [ipaddress.ip_address(str(entry[4][0])) for entry in await lookup]


class Fetcher:
    """Fetch addresses for the whole server.

    Args:
        settings: url_domains, url_ports, url_s, max_bytes.
        resolve: returns the addresses of a name.
        allowed: returns whether an address may be connected to.
        certificates: trusted certificates; None means the default ones.
        metrics: receives the time of each fetch.
    """

    def __init__(
        self,
        settings: Settings,
        resolve: Callable[[str, int], Awaitable[Sequence[IpAddress]]] = resolve,
        allowed: Callable[[IpAddress], bool] = is_public,
        certificates: ssl.SSLContext | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._domains = tuple(domain.lower().strip(".") for domain in settings.url_domains)
        self._ports = settings.url_ports
        self._seconds = settings.url_s
        self._max_bytes = settings.max_bytes
        self._resolve = resolve
        self._allowed = allowed
        self._certificates = certificates or httpx.create_ssl_context(trust_env=False)  # slow to create
        self._metrics = metrics or Metrics()
        self._running = 0

    async def fetch_each(self, addresses: Iterable[str]) -> Fetched:
        """Return the bytes behind each address, or why there are none.

        Raises:
            RequestTooLarge: the images are too large together.
            Overloaded: too many fetches are running.
        """
        found: dict[str, bytes | str] = {}
        urls: dict[str, httpx.URL] = {}
        for text in dict.fromkeys(addresses):
            try:
                urls[text] = self._checked(text)
            except _NotAllowed as error:
                found[text] = str(error)
        if not urls:
            return found
        held = min(len(urls), MAX_FETCHES_PER_REQUEST)
        if self._running + held > MAX_FETCHES:
            raise Overloaded("The server is fetching too many addresses; try again in a moment.")
        self._running += held
        try:
            with measured("fetch", self._metrics):
                await self._all(urls, found)
        finally:
            self._running -= held
        return found

    async def _all(self, urls: dict[str, httpx.URL], found: dict[str, bytes | str]) -> None:
        budget, turn = _Budget(self._max_bytes), asyncio.Semaphore(MAX_FETCHES_PER_REQUEST)

        async def one(text: str, url: httpx.URL) -> None:
            async with turn:
                try:
                    found[text] = await self._followed(url, budget)
                except RequestTooLarge:
                    raise
                except (_NotAllowed, OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
                    log.info("fetching from %r failed: %r", url.host, error)
                except Exception:  # a strange response must fail only this address
                    log.exception("fetching from %r failed", url.host)

        try:
            async with asyncio.timeout(self._seconds), asyncio.TaskGroup() as group:
                for text, url in urls.items():
                    group.create_task(one(text, url))
        except TimeoutError:
            log.info("fetching the addresses of a request took longer than %g s", self._seconds)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        for text in urls:
            found.setdefault(text, NOT_FETCHED)

    async def _followed(self, url: httpx.URL, budget: _Budget) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(url, budget)
            if isinstance(answer, bytes):
                return answer
            url = self._checked(answer)
        raise _NotAllowed(f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, url: httpx.URL, budget: _Budget) -> bytes | str:
        """Return the body, or the target of a redirect, from one checked address of the name."""
        found = await self._resolve(url.host, _port(url))
        if not found or not all(map(self._allowed, found)):
            raise _NotAllowed("the name has an address that is not public")
        pinned = url.copy_with(host=str(found[0]))
        headers = {"Host": url.netloc.decode(), "Accept": "image/*", "Accept-Encoding": "identity"}
        # trust_env: a proxy from the environment would resolve the name again
        async with (
            httpx.AsyncClient(
                trust_env=False, follow_redirects=False, timeout=self._seconds, verify=self._certificates
            ) as client,
            client.stream("GET", pinned, headers=headers, extensions={"sni_hostname": url.host}) as answer,
        ):
            if answer.has_redirect_location:
                return str(url.join(answer.headers["location"]))
            if answer.status_code != 200:
                raise _NotAllowed(f"status {answer.status_code}")
            body = bytearray()
            async for chunk in answer.aiter_raw():
                budget.take(len(chunk))
                body += chunk
            return bytes(body)

    def _checked(self, text: str) -> httpx.URL:
        """Return the parsed address if its text is acceptable."""
        try:
            url = httpx.URL(text) if len(text) <= MAX_URL and _ORDINARY.fullmatch(text) else None
        except (httpx.InvalidURL, ValueError):
            url = None
        if url is None or url.scheme not in ("http", "https") or url.userinfo or not _is_host(url.host):
            raise _NotAllowed("is not an address that can be fetched; expected https://HOST/PATH.")
        if _port(url) not in self._ports:
            raise _NotAllowed(f"has a port that is not allowed; use {_either(self._ports)}.")
        name = url.host.rstrip(".")
        if self._domains and not any(name == one or name.endswith(f".{one}") for one in self._domains):
            raise _NotAllowed(f"is on a domain that is not allowed; use {_either(self._domains)}.")
        return url


def _port(url: httpx.URL) -> int:
    return {"http": 80, "https": 443}[url.scheme] if url.port is None else url.port


def _either(names: Sequence[object]) -> str:
    return " or ".join(map(str, names))


def _is_host(host: str) -> bool:
    """Return whether this is a name, or an IP address in its usual spelling: not 2130706433 or 0x7f.1."""
    try:
        return str(ipaddress.ip_address(host)) == host and "%" not in host
    except ValueError:
        last = host.rstrip(".").rpartition(".")[2]
        return _NAME.fullmatch(host) is not None and not last.isdecimal() and not last.startswith("0x")
