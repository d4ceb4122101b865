"""Weights from a web address: pinned by it, kept whole or not at all, and each failure one sentence."""

import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hub_server import HubServer, running_hub

from nnclr_hub import load_encoder
from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import InvalidRequest, ModelError, ModelFilesMissing, TamperedModel, UnknownModel
from nnclr_hub.hub.layout import CONFIG, WEIGHTS, sha256_of
from nnclr_hub.hub.sources import resolve, verify


@pytest.fixture
def name(model) -> str:
    return f"encoder-{sha256_of(model / WEIGHTS)[:8]}.safetensors"


@pytest.fixture
def server(model, name, tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "root"
    root.mkdir()
    shutil.copy(model / CONFIG, root)
    shutil.copy(model / WEIGHTS, root / name)
    with running_hub({}, root=root) as server:
        yield server


def kept() -> list[Path]:
    return [path for path in (cache_folder() / "models").rglob("*") if path.is_file()]


def refusal(server: HubServer, name: str) -> str:
    """Return the message; nothing may be left in the cache."""
    with pytest.raises(ModelError) as caught:
        resolve(f"{server.url}/{name}", progress=False)
    assert "\n" not in str(caught.value)
    assert kept() == []
    return str(caught.value)


def test_it_is_fetched_once_and_verified_without_a_proxy(server, name, model, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # plain http would leave this machine that way
    monkeypatch.setenv("no_proxy", "")
    source = f"{server.url}/{name}"
    assert load_encoder(source, device="cpu").fingerprint == load_encoder(model, device="cpu").fingerprint
    assert server.asked == [f"/{CONFIG}", f"/{name}"]
    assert resolve(source).pins.by == "address"
    assert [one.pinned_by for one in verify(source)] == ["nobody", "address"]
    assert server.asked == [f"/{CONFIG}", f"/{name}"]
    # the query may be the signature without which the server gives nothing
    assert resolve(f"{source}?signature=1", progress=False).folder


HARMED = {
    "another file": lambda server, name, other: shutil.copy(other / WEIGHTS, server.root / name),
    "half of it": lambda server, name, other: server.broken.update({name: "half"}),
    "no weights": lambda server, name, other: (server.root / name).unlink(),
    "no config": lambda server, name, other: (server.root / CONFIG).unlink(),
    "a large config": lambda server, name, other: padded(server.root / CONFIG),
    "a page with status 200": lambda server, name, other: (server.root / CONFIG).write_text("<html>Not here</html>"),
    "the config of others": lambda server, name, other: shutil.copy(other / CONFIG, server.root),
}


def padded(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" " * (2 << 20))


@pytest.mark.parametrize("harm", HARMED)
def test_what_is_not_the_model_is_refused_and_not_kept(server, name, model, make_model, harm):
    HARMED[harm](server, name, make_model(seed=5))
    assert refusal(server, name)
    server.broken.clear()
    shutil.copy(model / CONFIG, server.root)
    shutil.copy(model / WEIGHTS, server.root / name)
    assert resolve(f"{server.url}/{name}", progress=False).folder


def test_a_file_that_was_changed_in_the_cache_is_refused(server, name):
    folder = resolve(f"{server.url}/{name}", progress=False).folder
    assert folder is not None
    with (folder / WEIGHTS).open("ab") as file:
        file.write(b"x")
    with pytest.raises(TamperedModel):
        resolve(f"{server.url}/{name}")


@pytest.mark.parametrize(("status", "kind"), [(401, UnknownModel), (403, UnknownModel), (503, ModelError)])
def test_a_refusal_names_its_status(server, name, status, kind):
    server.refusals = {CONFIG: (status, "")}
    with pytest.raises(kind):
        resolve(f"{server.url}/{name}")


def test_without_a_network_the_cache_is_named(name, monkeypatch, tmp_path):
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path))
    with pytest.raises(ModelFilesMissing):
        resolve(f"http://127.0.0.1:9/{name}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelFilesMissing):
        resolve(f"https://example.com/{name}")


def test_a_cache_that_cannot_be_written_is_named(server, name, monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("")
    monkeypatch.setenv("NNCLR_CACHE", str(tmp_path / "taken"))
    with pytest.raises(ModelError):
        resolve(f"{server.url}/{name}")


def test_a_full_disk_is_reported_and_leaves_no_files(server, name):
    """Simulate a full disk with the limit on the size of a file."""
    code = (
        "import resource, sys; sys.dont_write_bytecode = True\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from nnclr_hub.errors import ModelError; from nnclr_hub.hub.sources import resolve\n"
        "try: resolve(sys.argv[1])\n"
        "except ModelError as error: print(error)"
    )
    command = [sys.executable, "-c", code, f"{server.url}/{name}"]
    done = subprocess.run(command, env=os.environ | {"NO_PROXY": "127.0.0.1"}, capture_output=True, text=True)
    assert "disk" in done.stdout
    assert kept() == []


@pytest.mark.parametrize(
    "source",
    [
        "http://example.com/encoder-01234567.safetensors",
        "http://127.0.0.1.example.com/encoder-01234567.safetensors",
        "https://example.com/encoder.safetensors",
        "https://example.com/encoder-0123456.safetensors",
        "https:///encoder-01234567.safetensors",
        "https://[::1/encoder-01234567.safetensors",
        "https://example.com/encoder-01234567.pth",
    ],
)
def test_other_addresses_are_refused_before_anything_is_asked(source):
    with pytest.raises(InvalidRequest):
        resolve(source)


def test_a_redirect_leads_only_where_an_address_could(name):
    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://example.com/{CONFIG}")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(InvalidRequest):
            resolve(f"http://127.0.0.1:{server.server_port}/{name}")
    finally:
        server.shutdown()
        server.server_close()


def test_a_signature_is_not_shown(server, name):
    """Of an address, and of what it is called in every refusal."""
    server.refusals = {CONFIG: (403, "")}
    assert "secret" not in refusal(server, f"{name}?X-Signature=secret")
    for source in (
        f"http://example.com/{name}?secret",
        "https://example.com/a?secret",
        f"https://me:secret@host/{name}",
    ):
        with pytest.raises(InvalidRequest) as caught:
            resolve(source)
        assert "secret" not in str(caught.value)
