"""Uploading a folder resumes, is bounded, and gives the items of `nnclr index`."""

import contextlib
import os
import shutil
import signal
import tarfile
import threading
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from client.scripted_server import Response, scripted
from PIL import Image

from nnclr_hub import Client, open_store
from nnclr_hub.client import remote
from nnclr_hub.client.uploads import MOST_BYTES
from nnclr_hub.errors import CollectionNotFound, InvalidRequest
from nnclr_hub.workbench import Encoders, FolderRequest, NewImage, Workbench
from nnclr_hub.workbench.folder_changes import list_images_of
from nnclr_hub.workbench.metadata import PIXEL_HASH


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve) -> Iterator:
    # fewer permits than four uploads need, so that some requests are retried; requests are small
    yield from serve(model, tmp_path_factory.mktemp("upload") / "store", capacity=40, max_images=10)


def test_an_uploaded_folder_has_the_items_of_nnclr_index(server, collection, folder, model, tmp_path):
    """Ids, vectors, labels and pixel hashes are equal; only the source is named differently."""
    seen = []
    report = collection.index_folder(folder, progress=lambda done, total: seen.append((done, total)))
    assert (report.added, report.updated, report.unchanged, report.removed, report.broken) == (60, 0, 0, 0, ())
    assert seen[-1] == (60, 60)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    with open_store(str(tmp_path / "own")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        assert bench.index_folder("photos", folder) == report
        theirs = {item.id: item for page in bench.collection("photos").pages() for item in page}
    mine = {item.id: item for page in server.bench.collection("photos").pages() for item in page}
    assert mine.keys() == theirs.keys() == list_images_of(folder).images.keys()
    for id, item in mine.items():
        np.testing.assert_allclose(item.vector, theirs[id].vector, atol=1e-5)
        for key in ("path", "size", "mtime", "label", PIXEL_HASH):
            assert item.metadata[key] == theirs[id].metadata[key]
        assert str(folder.parent) not in str(item.metadata)


def test_another_folder_with_the_same_paths_is_refused_and_a_copy_is_unchanged(collection, folder, tmp_path):
    collection.index_folder(FolderRequest(folder, source="mine"))
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert collection.index_folder(FolderRequest(copy, source="copy")).unchanged == 60
    Image.new("RGB", (71, 70), "blue").save(copy / "cat" / "00.jpg")
    with pytest.raises(InvalidRequest):
        collection.index_folder(FolderRequest(copy, source="copy"))
    assert collection.index_folder(FolderRequest(copy, source="mine")).updated == 1


@pytest.mark.parametrize("there", ["server", "folder"])
def test_pruning_under_another_source_names_the_first_one(collection, folder, model, tmp_path, there, caplog):
    """The folder was indexed under another name, or was moved: its items are not deleted, and a line names them."""
    own = shutil.copytree(folder, tmp_path / "own")
    with open_store(str(tmp_path / "store")) as store:
        if there == "server":
            first, again = FolderRequest(own, source="mine"), FolderRequest(own, source="other", prune=True)
            index, root = collection.index_folder, "mine"
        else:
            bench = Workbench(Encoders(str(model), device="cpu"), store)
            first, again = FolderRequest(own), FolderRequest(tmp_path / "moved", prune=True)
            index, root = partial(bench.index_folder, "photos"), str(own)
        index(first)
        if there == "folder":
            own.rename(tmp_path / "moved")
        for name in ("00.jpg", "01.jpg"):
            (tmp_path / ("own" if there == "server" else "moved") / "cat" / name).unlink()
        caplog.clear()
        assert index(again).removed == 0
    [line] = [one.getMessage() for one in caplog.records if "source" in one.getMessage()]
    assert root in line
    if there == "server":
        caplog.clear()
        assert index(FolderRequest(own, source="mine", prune=True)).removed == 2
        assert [one for one in caplog.records if "source" in one.getMessage()] == []


def test_an_archive_of_the_same_name_is_refused_and_a_moved_one_is_unchanged(collection, folder, tmp_path):
    """Their images have the same ids, and often also the same sizes and times."""
    for part in ("train", "val"):
        (tmp_path / part).mkdir()
        with tarfile.open(tmp_path / part / "0.tar", "w") as tar:
            for number in range(3):
                tar.add(folder / "cat" / f"0{number}.jpg", f"{number}.jpg")
    assert collection.index_folder(tmp_path / "train" / "0.tar").added == 3
    before = {item.id: item.metadata for item in collection.scroll().items}
    for prune in (False, True):
        with pytest.raises(InvalidRequest) as refused:
            collection.index_folder(FolderRequest(tmp_path / "val" / "0.tar", prune=prune))
    assert {item.id: item.metadata for item in collection.scroll().items} == before
    source = next(iter(before.values()))["root"].removesuffix(":0.tar")
    assert repr(source) in str(refused.value)
    assert collection.index_folder(FolderRequest(tmp_path / "val" / "0.tar", source=source)).unchanged == 3


def test_an_upload_of_an_archive_that_changes_ends(collection, folder, tmp_path, monkeypatch):
    archive = shutil.make_archive(str(tmp_path / "a"), "tar", folder)
    find_changes = remote.find_changes

    def change(*args, **kwargs):
        os.utime(archive, (1, 1))
        return find_changes(*args, **kwargs)

    monkeypatch.setattr(remote, "find_changes", change)
    with pytest.raises(InvalidRequest, match="changed"):
        collection.index_folder(archive)
    assert not collection.count()


def test_shrunk_images_are_still_found(server, collection, folder):
    rng = np.random.default_rng(0)
    large = Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)).resize((1600, 1200))
    large.save(folder / "large.png")
    collection.index_folder(FolderRequest(folder, shrink=320))
    assert collection.search(image=large, k=1)[0].metadata["path"] == "large.png"
    assert collection.index_folder(folder).unchanged == 61


def test_an_interrupted_upload_keeps_acknowledged_images_and_continues(server, collection, folder):
    """Send SIGINT to the main thread in the middle of an upload, as a terminal does."""
    reached, main = [], threading.main_thread().ident
    assert main == threading.get_ident()

    def interrupt(done: int, total: int) -> None:
        if not reached:
            reached.append(done)
            signal.pthread_kill(main, signal.SIGINT)  # raise_signal would not interrupt its wait

    # a shell may have started this process with SIGINT ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            collection.index_folder(folder, progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    held = collection.count()
    assert reached[0] <= held
    report = collection.index_folder(folder)
    assert (report.added, report.unchanged) == (60 - held, held)


def test_a_refused_upload_stops_all_workers(client, folder, monkeypatch):
    monkeypatch.setattr(remote, "MOST", 5)  # a dozen requests, so that some are still to come
    with pytest.raises(CollectionNotFound):
        client.collection("nowhere").index_folder(folder)
    client.create_collection("vanishing")
    dropping = []

    def drop(done: int, total: int) -> None:
        if not dropping:
            dropping.append(done)
            client.store.drop("vanishing")

    with pytest.raises(CollectionNotFound):
        client.collection("vanishing").index_folder(folder, progress=drop)


def test_metadata_counts_toward_the_size_of_a_request():
    """These images fit into one request only without their metadata."""
    images = [NewImage(f"p{i}", b"x" * (MOST_BYTES // 64), {"text": "\u20ac" * 20_000}) for i in range(64)]
    with scripted() as server, Client(server.url) as client:
        server.script = [Response(200, {"results": [{} for _ in range(n)]}) for n in (32, 32)]
        with contextlib.suppress(ValueError):  # the script does not know how many images come
            client.collection("photos").add_images(images)
        assert max(int(headers["content-length"]) for _, _, headers in server.requests) <= 20_000_000
