"""nnclr index --server: the same report as into a store of this machine, and one sentence where it cannot be done."""

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest
import tifffile
from commands import error_line, nnclr

from nnclr_hub import Client
from nnclr_hub.client.remote import RemoteCollection
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ImageError, InvalidRequest, ServerUnreachable, StoreCorrupt, UnknownModel
from nnclr_hub.store.folder.collection import EmbeddedCollection
from nnclr_hub.workbench import NewCollection, folder_index

KEY = "0123456789abcdefghijklmnop"


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve) -> Iterator:
    yield from serve(model, tmp_path_factory.mktemp("verb") / "store", write_keys=(f"tests:{KEY}",))


def index(folder, *more) -> tuple[int, str, str]:
    return nnclr("index", folder, *more)


def test_a_failed_upload_is_explained_in_one_line(server, folder, monkeypatch, tmp_path):
    monkeypatch.delenv("NNCLR_API_KEY", raising=False)
    there = ("--collection", "d", "--server", server.url)
    assert "NNCLR_API_KEY" in error_line(index(folder, *there), 1)
    monkeypatch.setenv("MY_KEY", "wrong-" + KEY)
    assert "MY_KEY" in error_line(index(folder, *there, "--api-key-env", "MY_KEY"), 1)
    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    assert error_line(index(folder, *there, "--model", "nothing"), 2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"  # held, but it does not listen
        assert closed in error_line(index(folder, "--collection", "d", "--server", closed), 1)
    assert error_line(index(tmp_path / "nowhere", *there), 2)
    assert error_line(index(folder, *there, "--store", "s"), 2)
    assert error_line(index(folder, "--collection", "d", "--shrink", 320), 2)
    # nothing of all this has made the collection, but for the last one that had a server and a folder
    assert "d" not in {info.name for info in server.bench.store.list() if info.count}


@pytest.mark.parametrize("first", [ImageError, ServerUnreachable, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["store", "server"])
def test_the_first_error_of_an_index_is_reported(server, folder, model, monkeypatch, tmp_path, first, where):
    """The items are counted afterwards, but not for a user who ended the command, and not by an unreachable server."""
    asked = []

    def fails(*_, **__):
        raise first("the first error")

    def count(*_, **__):
        asked.append(1)
        raise StoreCorrupt("a later error")

    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    kind, place = {
        "store": (folder_index, ("--store", tmp_path / "s", "--model", model)),
        "server": (RemoteCollection, ("--server", server.url)),
    }[where]
    monkeypatch.setattr(kind, "index_folder", fails)
    monkeypatch.setattr(RemoteCollection if where == "server" else EmbeddedCollection, "count", count)
    answer = index(folder, "--collection", f"failing-{first.__name__}", *place)
    if first is KeyboardInterrupt:
        assert answer[0] == 130
    else:
        assert "the first error" in error_line(answer, 1)
    assert len(asked) == (first is ImageError)


def test_a_collection_of_a_server_reads_the_chosen_channels(server, model, monkeypatch, tmp_path):
    """The reading goes into the new collection, so that later uploads and searches need no options."""
    monkeypatch.setenv("NNCLR_API_KEY", KEY)
    cells = tmp_path / "cells"
    cells.mkdir()
    values = np.random.default_rng(0).integers(0, 256, (2, 40, 50, 4), np.uint8)
    for number in range(2):
        tifffile.imwrite(cells / f"{number}.tif", values[number], photometric="minisblack", planarconfig="contig")
    there = ("--collection", "cells", "--server", server.url)
    assert nnclr("index", cells, *there, "--channels", "3,0,2")[0] == 0
    with Client(server.url, KEY) as client:
        collection = client.collection("cells")
        found = {item.metadata["path"]: item.vector for item in collection.scroll().items}
        expected = load_encoder(model, device="cpu").embed(
            [np.ascontiguousarray(one[..., [3, 0, 2]]) for one in values]
        )
        np.testing.assert_allclose([found["0.tif"], found["1.tif"]], expected, atol=1e-3)
        with pytest.raises(UnknownModel):
            client.create_collection("other", NewCollection("nowhere?channels=0"))
        with pytest.raises(InvalidRequest):
            client.create_collection("other", NewCollection("default?page=1&project=max"))
    listed = json.loads(nnclr("store", "list", "--server", server.url, "--json")[1])
    assert [(one["name"], one["items"]) for one in listed if one["name"] == "cells"] == [("cells", 2)]
    assert "2 unchanged" in nnclr("index", cells, *there)[1]
    assert "2 unchanged" in nnclr("index", cells, *there, "--channels", "3,0,2")[1]
    error_line(nnclr("index", cells, *there, "--channels", "0,1,2"), 2)
    assert "2 unchanged" in nnclr("index", cells, *there, "--channels", "3,0,2", "--model", "default")[1]
    error_line(nnclr("index", cells, *there, "--channels", "3,0,2", "--model", "nothing"), 2)
    assert server.bench.collection("cells").count() == 2
