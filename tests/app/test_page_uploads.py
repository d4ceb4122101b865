"""Uploads to the page do not fill the disk."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app import uploads

UPLOAD = "/ui/gradio_api/upload"


@pytest.fixture(scope="module")
def served(model, tmp_path_factory, serve) -> Iterator:
    with warnings.catch_warnings():  # from gradio
        warnings.simplefilter("ignore", DeprecationWarning)
        import gradio  # noqa: F401
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uploads.UploadFolder.__init__, "__defaults__", (3_000_000,))
        for server in serve(model, tmp_path_factory.mktemp("uploads") / "store", page=True):
            assert httpx.get(f"{server.url}/ui/", timeout=60).status_code == 200
            yield server
    assert not folder().exists()  # removed at shutdown


@pytest.fixture(autouse=True)
def empty(served) -> None:
    age(folder(), uploads.MAX_AGE_S + 60)


def folder() -> Path:
    return Path(os.environ["GRADIO_TEMP_DIR"])


def age(folder: Path, seconds: float) -> None:
    """Set the modification times into the past."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def size_of_uploads() -> int:
    return sum(path.stat().st_size for path in folder().rglob("*") if path.is_file())


def upload(served, name: str = "files", size: int = 1_000_000) -> httpx.Response:
    return httpx.post(served.url + UPLOAD, files={name: ("a.jpg", os.urandom(size))}, timeout=120)


@pytest.mark.parametrize("name", ["files", "other"], ids=["expected-field", "unexpected-field"])
def test_uploads_are_rejected_while_the_folder_is_full(served, name):
    answers = [upload(served, name) for _ in range(8)]
    assert [answer.status_code == 429 for answer in answers] == [False] * 3 + [True] * 5
    assert answers[-1].headers["retry-after"] == "300"
    assert size_of_uploads() < 3_100_000
    age(folder(), uploads.MAX_AGE_S + 60)
    assert upload(served).status_code == 200
    assert 0 < size_of_uploads() < 1_100_000


def test_interrupted_uploads_count_and_expire(served):
    head = f"POST {UPLOAD} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000000\r\n"
    head += "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    head += '--b\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as connection:
            connection.sendall(head.encode() + b"x" * 1_500_000)
            time.sleep(0.3)
    assert size_of_uploads() < 3_500_000
    age(folder(), uploads.MAX_AGE_S + 60)
    assert upload(served).status_code == 200
    assert size_of_uploads() < 1_100_000


def test_many_small_files_fill_the_folder_too(served):
    several = [("files", (f"{i}.jpg", str(i).encode())) for i in range(60)]
    assert httpx.post(served.url + UPLOAD, files=several, timeout=120).status_code == 200
    assert upload(served).status_code == 429


def test_an_upload_is_private_and_unchanged(served, image_files):
    (path,) = httpx.post(
        served.url + UPLOAD, files={"files": ("a.jpg", image_files[0].read_bytes())}, timeout=120
    ).json()
    assert Path(path).read_bytes() == image_files[0].read_bytes()
    assert Path(path).is_relative_to(folder())
    assert folder().stat().st_mode & 0o077 == 0


def test_only_the_folders_of_killed_servers_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    os.mkfifo(tmp_path / "nnclr_page_pipe")  # opening it would block
    living = uploads.UploadFolder()
    (living.path / "a.jpg").write_bytes(b"in use")
    program = "import os, app.uploads, time; print(app.uploads.UploadFolder().path, flush=True); time.sleep(60)"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(uploads.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True) as other:
        killed = Path(other.stdout.readline().strip())
        (killed / "b.jpg").write_bytes(b"left over")
        uploads.UploadFolder()
        assert (killed / "b.jpg").exists()
        other.kill()
    third = uploads.UploadFolder()
    assert not killed.exists()
    assert (living.path / "a.jpg").read_bytes() == b"in use"
    assert third.path.is_dir()
