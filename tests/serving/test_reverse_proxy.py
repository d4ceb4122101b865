"""Behind nginx and Caddy with the configurations of docs/operate.md: login, /docs and redirects, also with a prefix.

Also with the two lines that pass websockets on, with which the body of a request must not reach other paths.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from waiting import free_port, until_served

from nnclr_hub import Client

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
OPERATE_PAGE = Path(__file__).parents[2] / "docs" / "operate.md"
WRITER = "writer-key-0123456789"
WEBSOCKETS = (
    "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;"
)
CONFIGURATION = """
daemon off; {user} pid {folder}/pid; error_log {folder}/log; worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {limits}
    map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
    server {{
        listen 127.0.0.1:{port};
        {documented}
        {below_prefix}
    }}
    limit_req_zone $binary_remote_addr zone=slow:1m rate=1r/m;
    server {{
        listen 127.0.0.1:{slow_port};
        {slow}
    }}
    server {{
        listen 127.0.0.1:{narrow_port};
        location = /api/v1/collections/c/search {{
            proxy_pass {upstream}; proxy_set_header Host $http_host;
            {websockets}
        }}
        location / {{ return 403; }}
    }}
}}
"""

CADDY = shutil.which("caddy")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
KEY = {"Authorization": f"Bearer {WRITER}"}


class Proxied(NamedTuple):
    """Addresses of nginx, and of the server behind it.

    narrow: lets through only searches of the collection `c`. slow: as documented, with a rate of one request a minute.
    """

    root: str
    prefixed: str
    narrow: str
    slow: str
    server: str


@pytest.fixture(scope="module")
def proxied(model, tmp_path_factory, serve) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("nginx")
    keys = {"write_keys": [f"ci:{WRITER}"], "trusted_proxies": ["127.0.0.1"]}
    for server in serve(model, folder / "store", page=True, **keys):
        limits, block = re.findall(r"```nginx\n(.*?)```", OPERATE_PAGE.read_text(), re.DOTALL)
        documented = block.replace("http://127.0.0.1:8000", server.url)
        below_prefix = documented.replace("location /", "location /some/images/").replace(server.url, f"{server.url}/")
        port, narrow_port, slow_port = free_port(), free_port(), free_port()
        (folder / "nginx.conf").write_text(
            CONFIGURATION.format(
                folder=folder,
                user="user root;" if os.geteuid() == 0 else "",  # the workers read the folder
                port=port,
                narrow_port=narrow_port,
                slow_port=slow_port,
                slow=documented.replace("zone=requests", "zone=slow"),
                upstream=server.url,
                documented=documented,
                limits=limits,
                below_prefix=below_prefix,
                websockets=WEBSOCKETS,
            )
        )
        assert NGINX is not None
        process = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-e", str(folder / "log")])
        try:
            root = f"http://127.0.0.1:{port}"
            until_served(f"{root}/readyz", process, folder / "log")
            narrow, slow = f"http://127.0.0.1:{narrow_port}", f"http://127.0.0.1:{slow_port}"
            yield Proxied(root, f"{root}/some/images", narrow, slow, server.url)
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(params=["root", "prefixed"])
def address(proxied, request) -> str:
    return getattr(proxied, request.param)


@needs_nginx
def test_a_browser_logs_in_and_stays_below_the_prefix(address):
    with httpx.Client(follow_redirects=True, timeout=60, headers={"Accept": "text/html"}) as browser:
        form = browser.get(f"{address}/docs")
        assert form.url.path.endswith("/login")
        action = re.findall(r'action="([^"]+)"', form.text)[0]
        origin = {"Origin": str(form.url.join("/")).rstrip("/")}
        page = browser.post(form.url.join(action), data={"key": WRITER, "next": "/docs"}, headers=origin)
        assert (page.status_code, str(page.url)) == (200, f"{address}/docs")
        loaded = re.findall(r'(?:src|href)="([^#][^"]*)"', page.text)
        assert len(loaded) == 3
        for target in loaded:
            answer = browser.get(page.url.join(target))
            assert answer.status_code == 200
            assert answer.history == []
            assert str(answer.url).startswith(f"{address}/")
        answer = browser.delete(f"{address}/api/v1/collections/none", headers=origin)
        assert answer.status_code == 404
        known = browser.get(f"{address}/login")
        start = re.findall(r"<a href='([^']+)'", known.text)[0]
        assert str(known.url.join(start)) == f"{address}/"


@needs_nginx
@pytest.mark.parametrize("path", ["/app", "/app/", "/api/v1/collections/", "/docs/"])
def test_redirects_stay_below_the_prefix(address, path):
    with httpx.Client(follow_redirects=True, timeout=60, headers={"Authorization": f"Bearer {WRITER}"}) as client:
        answer = client.get(f"{address}{path}")
        assert answer.status_code == 200
        assert answer.history != []
        assert str(answer.url).startswith(f"{address}/")


@needs_nginx
def test_a_client_uses_this_address(address, image_files):
    with Client(address, api_key=WRITER, timeout=60) as client:
        assert client.embed(image_files[:2]).shape[0] == 2
        assert client.list_models() != []


@needs_nginx
@pytest.mark.parametrize("offer", ["websocket", "h2c", "anything"])
def test_a_body_cannot_reach_a_path_that_the_proxy_forbids(proxied, offer):
    """nginx sends a large body in separate packets."""
    headers = {"Authorization": f"Bearer {WRITER}"}
    for name in ("c", "victim"):
        made = httpx.put(f"{proxied.server}/api/v1/collections/{name}", json={"dim": 2}, headers=headers, timeout=60)
        assert made.status_code in (200, 201)
    forbidden = f"{proxied.narrow}/api/v1/collections/victim"
    assert httpx.delete(forbidden, headers=headers, timeout=60).status_code == 403
    inner = f"DELETE /api/v1/collections/victim HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {WRITER}\r\n\r\n".encode()
    search = f"{proxied.narrow}/api/v1/collections/c/search"
    offered = {**headers, "Connection": "Upgrade", "Upgrade": offer, "Content-Type": "application/json"}
    for blank in (0, 2, 1000, 8000, 20_000, 60_000, 100_000, 500_000):
        answer = httpx.post(search, content=b"\r\n" * (blank // 2) + inner, headers=offered, timeout=60)
        assert answer.status_code == 400
    body = b" " * 100_000 + json.dumps({"vector": [1, 0]}).encode()
    assert httpx.post(search, content=body, headers=offered, timeout=60).status_code == 200
    victim = f"{proxied.server}/api/v1/collections/victim"
    assert httpx.get(victim, headers=headers, timeout=60).status_code == 200


@needs_nginx
def test_the_proxy_refuses_more_requests_than_its_rate(proxied):
    began = time.monotonic()
    with httpx.Client(timeout=60) as client:
        statuses = [client.get(f"{proxied.slow}/healthz").status_code for _ in range(220)]
    passed = 1 + 200 + (time.monotonic() - began) / 60  # the first, the burst, and the rate
    assert 201 <= statuses.count(200) <= passed
    assert set(statuses) == {200, 429}


@pytest.mark.skipif(CADDY is None, reason="Caddy is not installed")
def test_the_documented_configuration_of_caddy_works(model, tmp_path, serve, image_files):
    assert CADDY is not None
    page, port = OPERATE_PAGE.read_text(), free_port()
    documented = page[page.index("Caddy sets the headers") :].split("```")[1]
    documented = documented.replace("{", "{\n    admin off", 1).replace(
        "photos.example.com", f"http://127.0.0.1:{port}"
    )
    keys = {"write_keys": [f"ci:{WRITER}"], "trusted_proxies": ["127.0.0.1"]}
    for server in serve(model, tmp_path / "store", **keys):
        (tmp_path / "Caddyfile").write_text(documented.replace("127.0.0.1:8000", server.url.removeprefix("http://")))
        command = [CADDY, "run", "--adapter", "caddyfile", "--config", str(tmp_path / "Caddyfile")]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, env={**os.environ, "HOME": str(tmp_path)})
        try:
            root = f"http://127.0.0.1:{port}"
            until_served(f"{root}/readyz", process, tmp_path / "log")
            with Client(root, api_key=WRITER, timeout=60) as client:
                assert client.embed(image_files[:2]).shape[0] == 2
            big = httpx.post(f"{root}/api/v1/embed", content=bytes(20_100_000), headers=KEY, timeout=60)
            assert big.status_code == 413
            form = httpx.get(f"{root}/docs", headers={"Accept": "text/html"}, follow_redirects=True, timeout=60)
            assert str(form.url).startswith(f"{root}/login")
        finally:
            process.terminate()
            process.wait()
