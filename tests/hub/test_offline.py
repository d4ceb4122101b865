"""With the network cable out, `nnclr serve` and `nnclr demo` come up, answer, and do not even try to reach anyone."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import free_port, until_served

ROOT = Path(__file__).parents[2]
# takes the place of the cable: loaded by Python before anything else of the process
NO_CABLE = """
import os, socket

def refuse(who):
    host = who[0] if isinstance(who, tuple) else ""
    if host and host not in ("127.0.0.1", "::1", "localhost", "0.0.0.0"):
        with open(os.environ["TRIED"], "a") as file:
            file.write(f"{host}\\n")
        raise OSError(101, "Network is unreachable")

connect, connect_ex, lookup = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo
socket.socket.connect = lambda self, who: refuse(who) or connect(self, who)
socket.socket.connect_ex = lambda self, who: refuse(who) or connect_ex(self, who)
socket.getaddrinfo = lambda host, *more, **options: refuse((host,)) or lookup(host, *more, **options)
"""


@contextmanager
def started(folder: Path, *arguments: object) -> Iterator[str]:
    """The address of a program without network, once it is ready."""
    (folder / "cable").mkdir()
    (folder / "cable" / "sitecustomize.py").write_text(NO_CABLE)
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "NNCLR_"))}
    environment |= {
        "PYTHONPATH": f"{folder / 'cable'}{os.pathsep}{ROOT}",
        "TRIED": str(folder / "tried"),
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    command = [sys.executable, "-m", "nnclr_hub.cli", *map(str, arguments), "--port", str(port)]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        until_served(f"http://127.0.0.1:{port}/readyz", server, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        assert server.wait(60) == 0, (folder / "log").read_text()


def get(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()


@pytest.mark.slow
def test_serve_makes_no_network_requests(tmp_path):
    with started(tmp_path, "serve", "--store", "store") as address:
        assert json.loads(get(f"{address}/v1/models"))["data"]
        assert b"nnclr_hub" in get(f"{address}/")
    assert not (tmp_path / "tried").exists(), (tmp_path / "tried").read_text()


@pytest.mark.slow
def test_demo_makes_its_gallery_from_what_is_installed(tmp_path):
    """It tries to fetch the default gallery, and says that it could not."""
    with started(tmp_path, "demo") as address:
        (gallery,) = json.loads(get(f"{address}/api/v1/collections"))["collections"]
        assert gallery["count"] > 100
    assert "scikit-image" in (tmp_path / "log").read_text()
    assert "amazonaws" in (tmp_path / "tried").read_text()  # and so the cable was out


@pytest.mark.slow
def test_demo_with_local_images_makes_no_network_requests(tmp_path, photos):
    with started(tmp_path, "demo", "--images", photos) as address:
        (gallery,) = json.loads(get(f"{address}/api/v1/collections"))["collections"]
        assert gallery["count"] == 60
    assert not (tmp_path / "tried").exists(), (tmp_path / "tried").read_text()
