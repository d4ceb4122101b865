"""Which web addresses may be fetched."""

import ipaddress
import threading
from collections.abc import Iterator

import pytest
from url_site import GENERIC, Site, fetch, fetcher, refused

from nnclr_hub.errors import InvalidRequest
from serving.edge import url_fetcher
from serving.edge.url_fetcher import Fetcher, is_public
from serving.settings import Settings


@pytest.fixture
def site(image_files) -> Iterator[Site]:
    server = Site(image_files[0].read_bytes())
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "0.1.2.3"),
        *("192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250"),
        *("240.0.0.1", "255.255.255.255", "192.88.99.1", "::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8"),
        *("::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:808:808::1"),
        *("2001:db8::1", "fc00::1", "fd12::1", "fe80::1", "fec0::1", "ff02::1", "100::1", "5f00::1", "2001:2::1"),
    ],
)
def test_addresses_that_are_not_public(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "100.63.255.255", "2606:4700::1111", "2a00:1450::1"])
def test_addresses_that_are_public(address):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/x", "file:///etc/passwd", "gopher://example.com/", "data:,x", "//example.com/x", "x"),
        *(
            "http://",
            "http:///x",
            "https://user@example.com/",
            "https://user:word@example.com/",
        ),
        *("http://2130706433/", "http://0x7f.1/", "http://0x7f000001/", "http://017700000001/", "http://127.1/"),
        *("http://0177.0.0.1/", "http://[::1%25lo]/", "http://[::FFFF:127.0.0.1]/", "http://a..b/", "http://a b/"),
        *(
            "http://example.com\\@127.0.0.1/",
            "http://127.0.0.1\\.example.com/",
            "http://exa\nmple.com/",
            "http://é.com/",
        ),
        *("http://example.com\t/", " http://example.com/", "http://example.com/\x00", "http://①②⑦.0.0.1/"),
        *("http://example.com:99999/", "http://example.com:22/", "https://example.com:8443/", "http://example.com:0/"),
        "http://example.com/" + "a" * 3000,
    ],
)
def test_malformed_addresses_are_refused_without_a_lookup(url):

    async def resolve(host: str, port: int) -> list[url_fetcher.IpAddress]:
        pytest.fail(f"{host} was resolved")

    with pytest.raises(InvalidRequest) as caught:
        fetch(Fetcher(Settings(), resolve), url)
    assert "input[0]" in str(caught.value)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "[::1]", "169.254.169.254", "[::ffff:7f00:1]", "no-such-name.invalid"]
)
def test_this_machine_and_its_network_are_never_called(site, host):
    """With the real resolver and address check."""
    real = Fetcher(Settings(url_ports=(site.port,)))
    assert refused(real, f"http://{host}:{site.port}/x") == GENERIC
    assert site.requests == []


def test_only_listed_domains_are_fetched(site):
    listed = fetcher(site, url_domains=("example.com",))
    for host in ("example.com", "EXAMPLE.com", "img.example.com", "example.com."):
        assert fetch(listed, f"http://{host}:{site.port}/x") == [site.image]
    for host in ("example.com.evil.test", "evilexample.com", "127.0.0.1"):
        assert "domain" in refused(listed, f"http://{host}:{site.port}/x")
