"""nnclr index --server: the same report as into a store of this machine, and one sentence where it cannot be done."""

import json
import shutil
import socket
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from nnclr_hub.cli.app import app

KEY = "0123456789abcdefghijklmnop"


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(model, tmp_path_factory.mktemp("verb") / "store", write_keys=(f"tests:{KEY}",))


@pytest.fixture
def folder(photos, tmp_path):
    return shutil.copytree(photos, tmp_path / "photos")


def index(folder, *more) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    result = CliRunner().invoke(app, ["index", str(folder), *map(str, more)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_an_upload_reports_like_a_local_index_and_continues_where_it_stopped(
    server, folder, model, monkeypatch, tmp_path
):
    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    (folder / "cat" / "bad.jpg").write_bytes(b"garbage")
    there = ("--collection", "c", "--server", server.url)
    code, out, err = index(folder, *there, "--json")
    assert code == 0, err
    report = json.loads(out)
    own = json.loads(index(folder, "--collection", "c", "--store", tmp_path / "s", "--model", model, "--json")[1])
    assert report == own
    (folder / "cat" / "00.jpg").unlink()
    code, out, err = index(folder, *there, "--prune", "--workers", 2)
    assert (code, out) == (
        0,
        f"c: 0 added, 0 updated, 59 unchanged, 1 removed, 1 broken; 59 items in {server.url}\n",
    )
    assert "bad.jpg" in err
    (folder / "cat" / "00.jpg").write_bytes((folder / "cat" / "01.jpg").read_bytes())
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.delenv("NNCLR_API_KEY")
    code, _, err = index(folder, *there, "--api-key-env", "MY_KEY")
    assert code == 0
    assert "2/2" in err  # the bar: the broken one is tried again


def refusal(folder, *more) -> tuple[int, str]:
    code, _, err = index(folder, *more)
    lines = [line for line in err.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return code, lines[0]


def test_a_failed_upload_is_explained_in_one_line(server, folder, monkeypatch, tmp_path):
    monkeypatch.delenv("NNCLR_API_KEY", raising=False)
    there = ("--collection", "d", "--server", server.url)
    code, sentence = refusal(folder, *there)
    assert (code, "NNCLR_API_KEY" in sentence) == (1, True)
    monkeypatch.setenv("MY_KEY", "wrong-" + KEY)
    code, sentence = refusal(folder, *there, "--api-key-env", "MY_KEY")
    assert (code, "MY_KEY" in sentence) == (1, True)
    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    assert refusal(folder, *there, "--model", "nothing")[0] == 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    code, sentence = refusal(folder, "--collection", "d", "--server", closed)
    assert (code, closed in sentence) == (1, True)
    assert refusal(tmp_path / "nowhere", *there)[0] == 2
    assert refusal(folder, *there, "--workers", 0)[0] == 2
    assert refusal(folder, *there, "--store", "s")[0] == 2
    assert refusal(folder, "--collection", "d", "--shrink", 320)[0] == 2
    # nothing of all this has made the collection, but for the last one that had a server and a folder
    assert "d" not in {info.name for info in server.bench.store.list() if info.count}
