"""Fetching by web address: which address is connected to, limits, and identical failures.

A server on this machine represents the internet: the resolver and the address check are replaced, the rest is real.
"""

import asyncio
import base64
import ipaddress
import shutil
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest, Overloaded, RequestTooLarge
from serving import url_fetcher
from serving.request_bodies import decode_text
from serving.settings import Settings
from serving.url_fetcher import Fetcher, is_public

LOOPBACK = ipaddress.ip_address("127.0.0.1")
GENERIC = f"input[0] {url_fetcher.NOT_FETCHED}"
Resolve = Callable[[str, int], Awaitable[list[url_fetcher.IpAddress]]]


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
            return
        if kind == "status":
            self.send_error(int(rest))
            return
        self.send_response(200)
        self.end_headers()
        while kind == "endless":
            self.wfile.write(bytes(100_000))
        while kind == "drip" and not self.server.go_on.wait(0.05):
            self.wfile.write(b"x")
        if kind == "held":
            self.server.go_on.wait(120)
        self.wfile.write(self.server.image)

    def handle(self) -> None:
        with suppress(OSError):  # the fetcher closed the connection
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def fetcher(
    site: Site | None = None,
    names: dict[str, list[str]] | None = None,
    *,
    resolve: Resolve | None = None,
    certificates: ssl.SSLContext | None = None,
    **settings: Any,
) -> Fetcher:
    """Make a fetcher for which 127.0.0.1 is public. It is the address of every name that is not in `names`."""

    async def by_name(host: str, port: int) -> list[url_fetcher.IpAddress]:
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            return [ipaddress.ip_address(one) for one in (names or {}).get(host, ["127.0.0.1"])]

    options = Settings(**{"url_ports": (80, 443, *([site.port] if site else [])), **settings})
    return Fetcher(options, resolve or by_name, lambda address: address == LOOPBACK, certificates)


def fetch(fetcher: Fetcher, *urls: str) -> list[bytes]:
    found = asyncio.run(fetcher.fetch_each(urls))
    return [decode_text(url, "input[0]", found) for url in urls]


def refused(fetcher: Fetcher, url: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        fetch(fetcher, url)
    return str(caught.value)


@pytest.fixture
def site(image_files) -> Iterator[Site]:
    server = Site(image_files[0].read_bytes())
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


# ---- the connection


def test_an_image_is_fetched_from_the_checked_address(site, image_files):
    assert fetch(fetcher(site), f"http://img.example.com:{site.port}/a?b=c#d") == [image_files[0].read_bytes()]
    assert site.requests == [(f"img.example.com:{site.port}", "/a?b=c")]


def test_a_name_is_resolved_once(site):
    """A second, different DNS answer (DNS rebinding) is never used."""
    answers = [[LOOPBACK], [ipaddress.ip_address("127.0.0.2")]]

    async def resolve(host: str, port: int) -> list[url_fetcher.IpAddress]:
        return answers.pop(0)

    assert fetch(fetcher(site, resolve=resolve), f"http://rebind.example.com:{site.port}/x") == [site.image]
    assert len(answers) == 1


def test_redirects_are_checked_like_the_first_address(site):
    names = {"inside.example.com": ["10.0.0.1"]}
    base = f"http://a.example.com:{site.port}"
    for target in (
        "http://inside.example.com/",
        f"http://169.254.169.254:{site.port}/",
        "file:///etc/passwd",
        f"http://user@a.example.com:{site.port}/",
        "http://a.example.com:22/",
        "",
    ):
        assert refused(fetcher(site, names), f"{base}/to/{target}") == GENERIC
    assert {path for _, path in site.requests if not path.startswith("/to/")} == set()
    assert fetch(fetcher(site), f"{base}/to//image") == [site.image]
    assert fetch(fetcher(site), f"{base}/to/to/to/image".replace("/to/to/to/", "/to//to//to//")) == [site.image]
    assert refused(fetcher(site), f"{base}/to//to//to//to//image") == GENERIC


BROKEN = [f"/status/{status}" for status in (300, 301, 302, 303, 304, 305, 307, 308)]  # redirects without a target


@pytest.mark.parametrize("path", [*BROKEN, "odd"])
def test_a_failure_concerns_its_address_only(site, path):
    async def resolve(host: str, port: int) -> list[url_fetcher.IpAddress]:
        if host == "odd.example.com":
            raise RuntimeError("nobody thought of this")
        return [LOOPBACK]

    good = f"http://a.example.com:{site.port}/x"
    bad = good.replace("/x", path) if path in BROKEN else good.replace("/a.", f"/{path}.")
    found = asyncio.run(fetcher(site, resolve=resolve).fetch_each([bad, good]))
    assert found == {bad: url_fetcher.NOT_FETCHED, good: site.image}


# what cannot be fetched: the address, names and their addresses, settings. {port} is that of the site
FAILURES: dict[str, tuple[str, dict[str, list[str]], dict[str, Any]]] = {
    "not found": ("http://a.example.com:{port}/status/404", {}, {}),
    "an error of the server": ("http://a.example.com:{port}/status/500", {}, {}),
    "a private address": ("http://a.example.com:{port}/", {"a.example.com": ["10.0.0.1"]}, {}),
    "one private address of two": ("http://a.example.com:{port}/", {"a.example.com": ["127.0.0.1", "10.0.0.1"]}, {}),
    "a name without an address": ("http://a.example.com:{port}/", {"a.example.com": []}, {}),
    "a server that does not answer": ("http://a.example.com:{port}/held", {}, {"url_s": 0.3}),
    "a server whose bytes arrive slowly": ("http://a.example.com:{port}/drip", {}, {"url_s": 0.4}),
    "plain HTTP behind https": ("https://a.example.com:{port}/", {}, {}),
    "a closed port": ("http://a.example.com:1/", {}, {"url_ports": (1,)}),
}
OURS = ("localhost", "127.0.0.1", "[::1]", "169.254.169.254", "[::ffff:7f00:1]", "no-such-name.invalid")


@pytest.mark.parametrize("name", FAILURES)
def test_all_failures_give_the_same_message(site, name):
    """A port scanner learns nothing."""
    url, names, settings = FAILURES[name]
    assert refused(fetcher(site, names, **settings), url.format(port=site.port)) == GENERIC
    assert not site.requests or not names


@pytest.mark.parametrize("host", OURS)
def test_this_machine_and_its_network_are_never_called(site, host):
    """With the real resolver and address check."""
    real = Fetcher(Settings(url_ports=(site.port,)))
    assert refused(real, f"http://{host}:{site.port}/x") == GENERIC
    assert site.requests == []


def test_a_hanging_name_server_times_out(site):
    async def resolve(host: str, port: int) -> list[url_fetcher.IpAddress]:
        await asyncio.sleep(60)
        return []

    assert refused(Fetcher(Settings(url_s=0.2), resolve), "http://a.example.com/") == GENERIC


# ---- how much, how long


def test_bytes_are_limited_for_all_addresses_of_a_request_together(site):
    base = f"http://a.example.com:{site.port}"
    with pytest.raises(RequestTooLarge):
        fetch(fetcher(site, max_bytes=500_000), f"{base}/endless")
    size = len(site.image)
    assert len(fetch(fetcher(site, max_bytes=3 * size), *[f"{base}/x{i}" for i in range(3)])) == 3
    with pytest.raises(RequestTooLarge):
        fetch(fetcher(site, max_bytes=3 * size), *[f"{base}/x{i}" for i in range(4)])


def test_too_many_fetches_are_refused_and_later_ones_succeed(site):
    url = f"http://a.example.com:{site.port}/held"
    shared = fetcher(site)

    async def crowd() -> list[object]:
        asked = [asyncio.create_task(shared.fetch_each([f"{url}?{i}" for i in range(8)])) for _ in range(5)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)  # the refused one
        site.go_on.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    assert sum(isinstance(one, Overloaded) for one in asyncio.run(crowd())) == 1
    assert fetch(shared, f"http://a.example.com:{site.port}/x") == [site.image]


# ---- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Make a self-signed certificate for img.example.com."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"]
    command += ["-addext", "subjectAltName=DNS:img.example.com"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_the_certificate_must_match_the_name(site, certificate):
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    names: list[str | None] = []
    ours.sni_callback = lambda socket, name, context: names.append(name)
    site.socket = ours.wrap_socket(site.socket, server_side=True)
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    over_tls = fetcher(site, certificates=trusting)
    assert fetch(over_tls, f"https://img.example.com:{site.port}/x") == [site.image]
    assert names == ["img.example.com"]
    assert refused(over_tls, f"https://other.example.com:{site.port}/x") == GENERIC
    assert refused(fetcher(site), f"https://img.example.com:{site.port}/x") == GENERIC


# ---- over REST


@pytest.fixture
def fetching_server(server, site) -> Iterator:
    server.app.state.fetcher = fetcher(site)
    yield server
    server.app.state.fetcher = None


def test_routes_accept_images_by_address(fetching_server, site, model, image_files):
    url = f"http://a.example.com:{site.port}/x"
    text = base64.b64encode(image_files[0].read_bytes()).decode()
    with httpx.Client(base_url=fetching_server.url, timeout=120) as client:
        body = {"model": model.name, "input": [url, text, url.replace("http", "HTTP")]}
        answer = client.post("/v1/embeddings", json=body)
        vectors = [entry["embedding"] for entry in answer.json()["data"]]
        np.testing.assert_allclose(vectors, [vectors[1]] * 3, atol=1e-5)
        client.put("/api/v1/collections/fetched", json={})
        client.put("/api/v1/collections/fetched/items", json=[{"id": "a", "vector": vectors[0]}])
        found = client.post("/api/v1/collections/fetched/search", json={"image": url}).json()["matches"]
        assert (found[0]["id"], round(found[0]["score"], 4)) == ("a", 1.0)
        client.delete("/api/v1/collections/fetched")
        answer = client.post("/v1/embeddings", json={"model": model.name, "input": [text, f"{url}/../status/404"]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "input[1]"
        assert "could not be fetched" in answer.json()["error"]["message"]
        answer = client.post("/api/v1/embed", json={"images": [url, f"{url}/../status/404", text]})
        assert [entry.get("error", {}).get("code") for entry in answer.json()["data"]] == [
            None,
            "undecodable_image",
            None,
        ]


def test_by_default_nothing_is_fetched(server, site, model):
    body = {"model": model.name, "input": f"http://127.0.0.1:{site.port}/x"}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60)
    assert answer.status_code == 400
    assert "does not fetch" in answer.json()["error"]["message"]
    assert site.requests == []


PRIVATE = """
127.0.0.1 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 0.1.2.3 192.0.0.1 192.0.0.192 192.0.0.9
192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255 192.88.99.1
:: ::1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 2002:7f00:1::
2001:0:808:808::1 2001:db8::1 fc00::1 fd12::1 fe80::1 fec0::1 ff02::1 100::1 5f00::1 2001:2::1
"""
PUBLIC = "8.8.8.8 1.1.1.1 100.63.255.255 2606:4700::1111 2a00:1450::1"


@pytest.mark.parametrize("address", (PRIVATE + PUBLIC).split())
def test_addresses_that_are_public(address):
    assert is_public(ipaddress.ip_address(address)) == (address in PUBLIC.split())


MALFORMED = """
ftp://example.com/x file:///etc/passwd gopher://example.com/ data:,x //example.com/x x http:// http:///x
https://user@example.com/ https://user:word@example.com/ http://example.com\\@127.0.0.1/
http://127.0.0.1\\.example.com/ http://2130706433/ http://0x7f.1/ http://0x7f000001/ http://017700000001/ http://127.1/
http://0177.0.0.1/ http://[::1%25lo]/ http://[::FFFF:127.0.0.1]/ http://a..b/ http://é.com/ http://①②⑦.0.0.1/
http://example.com:99999/ http://example.com:22/ https://example.com:8443/ http://example.com:0/
"""
SPACES = (
    "http://a b/",
    "http://exa\nmple.com/",
    "http://example.com\t/",
    " http://example.com/",
    "http://example.com/\0",
)


@pytest.mark.parametrize("url", [*MALFORMED.split(), *SPACES, "http://example.com/" + "a" * 3000])
def test_malformed_addresses_are_refused_without_a_lookup(url):

    async def resolve(host: str, port: int) -> list[url_fetcher.IpAddress]:
        pytest.fail(f"{host} was resolved")

    with pytest.raises(InvalidRequest) as caught:
        fetch(Fetcher(Settings(), resolve), url)
    assert "input[0]" in str(caught.value)


def test_only_listed_domains_are_fetched(site):
    listed = fetcher(site, url_domains=("example.com",))
    for host in ("example.com", "EXAMPLE.com", "img.example.com", "example.com."):
        assert fetch(listed, f"http://{host}:{site.port}/x") == [site.image]
    for host in ("example.com.evil.test", "evilexample.com", "127.0.0.1"):
        assert "domain" in refused(listed, f"http://{host}:{site.port}/x")
