"""Images by their web addresses, where NNCLR_ALLOW_URLS=1 lets us fetch them.

A server that fetches what strangers name can be made to ask machines that only it can reach. So:

- one parser: what is checked is what is fetched, `httpx.URL`;
- http and https, on the ports of the settings, without a user name, from the domains of the settings if any;
- the name is resolved once, every address must be a public one, and the connection goes to the address that
  was checked, while Host, SNI and the certificate keep to the name: no second look-up can differ (DNS rebinding);
- a redirect is checked like the first address; at most three;
- bytes and seconds are counted for all addresses of a request together;
- whatever goes wrong there is one sentence, which tells a port scanner nothing; the log has the reason.

Only what the address itself says wrong is told.
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

from ..settings import Settings
from ..telemetry import Metrics, measured

log = logging.getLogger(__name__)
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Fetched = dict[str, bytes | str]  # by address: the bytes, or the rest of a sentence that says why there are none
CANNOT = "could not be fetched: check its address, or send the image itself."
MAX_REDIRECTS = 3
MAX_URL = 2048
AT_ONCE = 32  # fetches in the whole server
OF_ONE_REQUEST = 8
_ORDINARY = re.compile(r"[!-\[\]-~]+")  # printable ASCII but the backslash, which parsers disagree about
_NAME = re.compile(r"(?=.*[a-z])[a-z0-9_-]+([.][a-z0-9_-]+)*[.]?")
_IPV6_PUBLIC = ipaddress.ip_network("2000::/3")
_IPV6_TUNNELS = tuple(map(ipaddress.ip_network, ("2002::/16", "2001::/32")))  # 6to4 and Teredo carry IPv4 addresses
_IPV4_RELAY = ipaddress.ip_network("192.88.99.0/24")
_RESOLVERS = ThreadPoolExecutor(8, thread_name_prefix="resolve")  # a name server that hangs holds only these


class _Unfit(Exception):
    """An address that is not to be fetched; what its text says wrong may be told, what is behind it may not."""


class _Budget:
    """Bytes that the fetches of one request may still take."""

    def __init__(self, size: int) -> None:
        self.size = self.left = size

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise RequestTooLarge(
                f"The images at these addresses are above the limit of {self.size / 1e6:g} MB: send fewer at once."
            )


def is_public(address: IpAddress) -> bool:
    """Whether an address belongs to the open internet, and to no tunnel, relay or group."""
    if isinstance(address, ipaddress.IPv6Address):
        return address in _IPV6_PUBLIC and address.is_global and not any(address in net for net in _IPV6_TUNNELS)
    return address.is_global and not address.is_multicast and not address.is_reserved and address not in _IPV4_RELAY


async def resolve(host: str, port: int) -> list[IpAddress]:
    """All addresses of a name, asked in a thread."""
    asked = asyncio.get_running_loop().run_in_executor(
        _RESOLVERS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    return [ipaddress.ip_address(str(entry[4][0])) for entry in await asked]


class Fetcher:
    """Fetches for the whole server.

    Args:
        settings: url_domains, url_ports, url_s, max_bytes.
        resolve: a name's addresses.
        allowed: whether an address may be connected to.
        certificates: those that are trusted; None: the usual ones.
        metrics: told of the time; None: nobody looks.
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
        self._certificates = certificates or httpx.create_ssl_context(trust_env=False)  # slow to make: once
        self._metrics = metrics or Metrics()
        self._running = 0

    async def fetch_each(self, addresses: Iterable[str]) -> Fetched:
        """What is behind each address, or why there is nothing.

        Raises:
            RequestTooLarge: they hold too many bytes together.
            Overloaded: too many fetches are in work.
        """
        found: dict[str, bytes | str] = {}
        urls: dict[str, httpx.URL] = {}
        for text in dict.fromkeys(addresses):
            try:
                urls[text] = self._checked(text)
            except _Unfit as error:
                found[text] = str(error)
        if not urls:
            return found
        held = min(len(urls), OF_ONE_REQUEST)
        if self._running + held > AT_ONCE:
            raise Overloaded("The server fetches as many addresses as it takes: try again in a moment.")
        self._running += held
        try:
            with measured(self._metrics, "fetch"):
                await self._all(urls, found)
        finally:
            self._running -= held
        return found

    async def _all(self, urls: dict[str, httpx.URL], found: dict[str, bytes | str]) -> None:
        budget, turn = _Budget(self._max_bytes), asyncio.Semaphore(OF_ONE_REQUEST)

        async def one(text: str, url: httpx.URL) -> None:
            async with turn:
                try:
                    found[text] = await self._followed(url, budget)
                except RequestTooLarge:
                    raise
                except (_Unfit, OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
                    log.info("nothing could be fetched from %r: %r", url.host, error)
                except Exception:  # nobody foresees all that others answer, and it is this one address that fails
                    log.exception("nothing could be fetched from %r", url.host)

        try:
            async with asyncio.timeout(self._seconds), asyncio.TaskGroup() as group:
                for text, url in urls.items():
                    group.create_task(one(text, url))
        except TimeoutError:
            log.info("fetching took longer than %g s", self._seconds)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        for text in urls:
            found.setdefault(text, CANNOT)

    async def _followed(self, url: httpx.URL, budget: _Budget) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._get(url, budget)
            if isinstance(answer, bytes):
                return answer
            url = self._checked(answer)
        raise _Unfit(f"more than {MAX_REDIRECTS} redirects")

    async def _get(self, url: httpx.URL, budget: _Budget) -> bytes | str:
        """The body, or where a redirect leads; from one checked address of the name."""
        found = await self._resolve(url.host, _port(url))
        if not found or not all(map(self._allowed, found)):
            raise _Unfit("an address of the name is not a public one")
        pinned = url.copy_with(host=str(found[0]))
        headers = {"Host": url.netloc.decode(), "Accept": "image/*", "Accept-Encoding": "identity"}
        # trust_env: a proxy of the environment would resolve the name again
        async with (
            httpx.AsyncClient(
                trust_env=False, follow_redirects=False, timeout=self._seconds, verify=self._certificates
            ) as client,
            client.stream("GET", pinned, headers=headers, extensions={"sni_hostname": url.host}) as answer,
        ):
            if answer.has_redirect_location:
                return str(url.join(answer.headers["location"]))
            if answer.status_code != 200:
                raise _Unfit(f"status {answer.status_code}")
            body = bytearray()
            async for chunk in answer.aiter_raw():
                budget.take(len(chunk))
                body += chunk
            return bytes(body)

    def _checked(self, text: str) -> httpx.URL:
        """The address, if it may be asked for by what it says."""
        try:
            url = httpx.URL(text) if len(text) <= MAX_URL and _ORDINARY.fullmatch(text) else None
        except (httpx.InvalidURL, ValueError):
            url = None
        if url is None or url.scheme not in ("http", "https") or url.userinfo or not _is_host(url.host):
            raise _Unfit("is not an address that can be fetched: write https://host/path.")
        if _port(url) not in self._ports:
            raise _Unfit(f"names a port that is not fetched from: use {_either(self._ports)}.")
        name = url.host.rstrip(".")
        if self._domains and not any(name == one or name.endswith(f".{one}") for one in self._domains):
            raise _Unfit(f"is not on a domain that is fetched from: use {_either(self._domains)}.")
        return url


def _port(url: httpx.URL) -> int:
    return {"http": 80, "https": 443}[url.scheme] if url.port is None else url.port


def _either(names: Sequence[object]) -> str:
    return " or ".join(map(str, names))


def _is_host(host: str) -> bool:
    """A name, or an IP address in its one ordinary spelling: neither 2130706433 nor 0x7f.1."""
    try:
        return str(ipaddress.ip_address(host)) == host and "%" not in host
    except ValueError:
        last = host.rstrip(".").rpartition(".")[2]
        return _NAME.fullmatch(host) is not None and not last.isdecimal() and not last.startswith("0x")
