"""nnclr index into a store of this machine and into a server: new, changed, broken and missing files."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tifffile
from commands import error_line, nnclr

from nnclr_hub import Client, load_encoder, open_store
from nnclr_hub.client.remote import RemoteCollection
from nnclr_hub.errors import ImageError, InvalidRequest, ServerUnreachable, StoreCorrupt, UnknownModel
from nnclr_hub.store.folder.collection import EmbeddedCollection
from nnclr_hub.workbench import FolderRequest, NewCollection, folder_index


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve):
    yield from serve(model, tmp_path_factory.mktemp("pruning") / "store")


@pytest.fixture
def folder(image_files, tmp_path) -> Path:
    """Three images in two folders."""
    for i, name in enumerate(("cat/1.jpg", "cat/2.jpg", "3.jpg")):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(image_files[i], tmp_path / "photos" / name)
    return tmp_path / "photos"


@pytest.fixture(params=["store", "server"])
def index(request, model, tmp_path):
    """index(folder, *more, into="c") -> the report, or the error line."""
    where = ["--store", tmp_path / "store", "--model", model]
    if request.param == "server":
        where = ["--server", request.getfixturevalue("server").url]

    def words(folder, *more, into="c"):
        source = ["--source", f"{Path(folder).name}@here"] if request.param == "server" else []
        return ["index", folder, "--collection", into, "--json", *where, *source, *more]

    def run(folder, *more, into="c"):
        answer = nnclr(*words(folder, *more, into=into))
        return json.loads(answer[1]) if answer[0] == 0 else error_line(answer, answer[0])

    run.words = words
    yield run
    if request.param == "server":
        bench = request.getfixturevalue("server").bench
        for info in bench.store.list():
            bench.drop(info.name)


@pytest.fixture
def opened(request, tmp_path):
    """Return a function that opens the store of `index`."""

    def read():
        if "server" in request.node.callspec.params["index"]:
            return Client(request.getfixturevalue("server").url).store
        return open_store(tmp_path / "store", read_only=True)

    return read


def counts(report: dict) -> list[int]:
    return [report[what] for what in ("added", "updated", "unchanged", "removed", "items")]


def test_a_name_that_is_not_utf_8_is_refused_and_not_changed(index, opened, folder, image_files):
    """A byte that became ? would name no file, and perhaps another one."""
    odd = folder / "cat" / os.fsdecode(b"caf\xe9.jpg")
    shutil.copy(image_files[9], odd)
    report = index(folder)
    assert counts(report) == [3, 0, 0, 0, 3]
    assert [path for path, _ in report["broken"]] == [str(odd)]
    assert "UTF-8" in report["broken"][0][1]
    shutil.move(odd, odd.with_name("café.jpg"))
    assert counts(index(folder)) == [1, 0, 3, 0, 4]
    with opened() as store:
        paths = [item.metadata["path"] for item in store.get("c").scroll().items]
    assert sorted(paths) == ["3.jpg", "cat/1.jpg", "cat/2.jpg", "cat/café.jpg"]


def test_new_changed_broken_and_missing_files(index, opened, encoder, folder, image_files):
    assert counts(index(folder)) == [3, 0, 0, 0, 3]
    with opened() as store:
        before = store.get("c").info().durable_seq
    assert counts(index(folder)) == [0, 0, 3, 0, 3]
    with opened() as store:
        assert store.get("c").info().durable_seq == before
    shutil.copy(image_files[9], folder / "cat" / "new.jpg")
    (folder / "cat" / "1.jpg").write_bytes(image_files[-1].read_bytes())
    os.utime(folder / "cat" / "1.jpg", (1, 1))
    (folder / "3.jpg").unlink()
    (folder / "bad.jpg").write_bytes(b"garbage")
    (folder / "cut.jpg").write_bytes(image_files[0].read_bytes()[:500])
    (folder / "dangling.jpg").symlink_to("nowhere")
    (folder / "loop").symlink_to("..")
    os.mkfifo(folder / "pipe.jpg")
    shutil.copy(image_files[0], folder / "line\nbreak ünï.jpg")
    report = index(folder)
    assert counts(report) == [2, 1, 1, 0, 5]
    broken = ["bad.jpg", "cut.jpg", "dangling.jpg", "pipe.jpg"]
    assert [Path(path).name for path, _ in report["broken"]] == broken
    report = index(folder, "--prune")
    assert (counts(report), len(report["broken"])) == ([0, 0, 4, 1, 4], 4)
    with opened() as store:
        [item] = store.get("c").scroll(where={"must": [{"key": "path", "match": "cat/1.jpg"}]}).items
    np.testing.assert_allclose(item.vector, encoder.embed([image_files[-1]])[0], atol=1e-5)
    assert item.metadata["label"] == "cat"


def test_pruning_removes_the_last_item_with_the_last_image(index, folder):
    index(folder)
    for path in folder.rglob("*.jpg"):
        path.unlink()
    assert "no image" in index(folder)
    report = index(folder, "--prune")
    assert (report["removed"], report["kept"], report["items"]) == (1, 2, 2), (
        "a disk may not be mounted at the empty folder"
    )
    (folder / "cat" / ".emptied").touch()
    report = index(folder, "--prune")
    assert (report["removed"], report["kept"], report["items"]) == (2, 0, 0)


def test_pruning_an_empty_folder_deletes_nothing(index, folder, image_files):
    """The disk may not be mounted, or the folder may be missing. Any file in it shows that it is the real folder."""
    index(folder)
    shutil.rmtree(folder)
    assert "does not exist" in index(folder, "--prune")
    folder.mkdir()
    assert "not mounted" in index(folder, "--prune")
    (folder / ".emptied").touch()
    report = index(folder, "--prune")
    assert (report["removed"], report["items"]) == (3, 0)


def test_a_wrong_source_is_refused_and_creates_nothing(index, opened, folder, tmp_path):
    other = tmp_path / "other"
    (other / "texts").mkdir(parents=True)
    assert "other" in index(other, "--prune")
    assert not (tmp_path / "store").exists()
    packed = [shutil.make_archive(str(tmp_path / "a"), form, folder) for form in ("zip", "gztar")]
    Path(packed[0]).write_bytes(Path(packed[0]).read_bytes()[:-99])  # damaged
    packed.append(shutil.make_archive(str(tmp_path / "b"), "tar", other))  # without images
    for archive in packed:
        assert archive in index(archive)
    assert not (tmp_path / "store").exists()
    index(folder)
    assert "other" in index(other, "--prune")
    for wrong in (other, *packed):
        assert str(wrong) in index(wrong, into="d")
    assert index(folder)["items"] == 3
    with opened() as store:
        assert list(store.names()) == ["c"]


def test_a_folder_without_readable_images_fails_and_leaves_nothing(index, opened, folder, tmp_path):
    """With --json, it ends as one document."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.jpg").write_bytes(b"garbage")
    code, out, err = nnclr(*index.words(tmp_path / "broken"))
    report = json.loads(out)  # fails if anything follows the document
    assert (code, report["error"]["code"], report["items"]) == (1, "undecodable_image", 0)
    assert [path for path, _ in report["broken"]] == [str(tmp_path / "broken" / "one.jpg")]
    assert "None of 1 image " in err
    assert not (tmp_path / "store").exists()
    index(folder)
    assert "None of 1 image " in index(tmp_path / "broken", into="d")
    with opened() as store:
        assert list(store.names()) == ["c"]


@pytest.mark.parametrize("first", [ImageError, ServerUnreachable, KeyboardInterrupt])
def test_the_first_error_is_reported(index, folder, monkeypatch, first):
    """The items are counted afterwards, but not for a user who ended the command, and not by an unreachable server."""
    asked = []

    def fails(*_, **__):
        raise first("the first error")

    def count(*_, **__):
        asked.append(1)
        raise StoreCorrupt("a later error")

    for kind in (folder_index, RemoteCollection):
        monkeypatch.setattr(kind, "index_folder", fails)
    counted = RemoteCollection if "--server" in index.words(folder) else EmbeddedCollection
    monkeypatch.setattr(counted, "count", count)
    if first is KeyboardInterrupt:
        assert nnclr(*index.words(folder))[0] == 130
    else:
        assert "the first error" in index(folder)
    assert len(asked) == (first is ImageError)


def test_two_folders_with_the_same_names_do_not_overwrite_each_other(folder, model, tmp_path):
    def index(folder) -> int | str:
        words = ("index", folder, "--collection", "c", "--store", tmp_path / "store", "--model", model, "--json")
        answer = nnclr(*words)
        return json.loads(answer[1])["items"] if answer[0] == 0 else error_line(answer, 2)

    assert index(folder) == 3
    assert str(folder) in index(shutil.copytree(folder, tmp_path / "other"))
    moved = folder.rename(tmp_path / "moved")  # a moved folder may be indexed again
    assert index(moved) == 3
    for _ in range(2):
        with open_store(str(tmp_path / "store")) as opened:  # as if a client had uploaded it
            opened.get("c").update_metadata({"root": "photos-0123abcd@laptop"}, where={"must_not": [{"ids": []}]})
        assert index(moved) == 3
    with open_store(str(tmp_path / "store")) as opened:
        opened.get("c").update_metadata({"root": "photos-0123abcd@laptop"}, where={"must_not": [{"ids": []}]})
    shutil.copy(moved / "cat" / "1.jpg", moved / "cat" / "2.jpg")
    assert "laptop" in index(moved)


def test_images_in_an_unreadable_folder_are_not_pruned(index, folder, monkeypatch):
    """The error is injected, since root can list every folder."""
    index(folder)
    scandir = os.scandir

    def refuses(path="."):
        if str(path).endswith("/cat"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refuses)
        assert index(folder, "--prune")["removed"] == 0
    shutil.rmtree(folder / "cat")
    assert index(folder, "--prune")["removed"] == 2


def test_a_server_keeps_items_unless_a_source_is_given(server, image_files, tmp_path, caplog):
    """Another machine may have a folder of the same source; another folder of the same name has another source."""
    first, second = tmp_path / "a" / "images", tmp_path / "b" / "images"
    for folder, numbers in ((first, range(3)), (second, range(3, 5))):
        folder.mkdir(parents=True)
        for i in numbers:
            shutil.copy(image_files[i], folder / f"{i}.jpg")

    def index(folder, *more) -> tuple[int, int, int]:
        code, out, err = nnclr("index", folder, "--collection", "two", "--server", server.url, "--json", *more)
        assert code == 0, err
        report = json.loads(out)
        return report["removed"], report["kept"], report["items"]

    with Client(server.url) as client:
        assert index(first) == (0, 0, 3)
        two = client.collection("two")
        source = two.scroll().items[0].metadata["root"]
        assert index(second, "--prune") == (0, 0, 5)
        (first / "0.jpg").unlink()
        assert two.index_folder(first).kept == 0
        assert index(first, "--prune") == (0, 1, 5)
        assert any(f"--source {source}" in message for message in caplog.messages)
        report = two.index_folder(FolderRequest(first, prune=True))
        assert (report.removed, report.kept) == (0, 1)
        assert index(first, "--prune", "--source", source) == (1, 0, 4)


def test_a_collection_of_a_server_reads_the_chosen_channels(server, model, tmp_path):
    """The reading goes into the new collection, so that later uploads and searches need no options."""
    cells = tmp_path / "cells"
    cells.mkdir()
    values = np.random.default_rng(0).integers(0, 256, (2, 40, 50, 4), np.uint8)
    for number in range(2):
        tifffile.imwrite(cells / f"{number}.tif", values[number], photometric="minisblack", planarconfig="contig")
    call = ("index", cells, "--collection", "cells", "--server", server.url)
    assert nnclr(*call, "--channels", "3,0,2")[0] == 0
    with Client(server.url) as client:
        found = {item.metadata["path"]: item.vector for item in client.collection("cells").scroll().items}
        with pytest.raises(UnknownModel):
            client.create_collection("other", NewCollection("nowhere?channels=0"))
        with pytest.raises(InvalidRequest):
            client.create_collection("other", NewCollection("default?page=1&project=max"))
    images = [np.ascontiguousarray(one[..., [3, 0, 2]]) for one in values]
    expected = load_encoder(model, device="cpu").embed(images)
    np.testing.assert_allclose([found["0.tif"], found["1.tif"]], expected, atol=1e-3)
    for more in ((), ("--channels", "3,0,2"), ("--channels", "3,0,2", "--model", "default")):
        assert "2 unchanged" in nnclr(*call, *more)[1]
    for more in (("--channels", "0,1,2"), ("--channels", "3,0,2", "--model", "nothing")):
        error_line(nnclr(*call, *more), 2)
    assert server.bench.collection("cells").count() == 2


def test_people_see_broken_files_and_kept_items(folder, model, tmp_path):
    def said(*more) -> tuple[str, str]:
        code, out, err = nnclr("index", folder, "--collection", "c", "--store", tmp_path / "s", "--model", model, *more)
        assert code == 0, err
        return out, err

    (folder / "cat" / "1.jpg").write_bytes(b"garbage")
    out, err = said()
    assert ("2 added" in out, "1 broken" in out, "skipped" in err) == (True, True, True)
    assert "cat/1.jpg" in err
    (folder / "cat" / "1.jpg").unlink()
    (folder / "cat" / "2.jpg").unlink()
    assert "0 removed, 1 kept (their files may exist), 0 broken; 2 items" in said("--prune")[0]
    shutil.rmtree(folder / "cat")
    assert "1 removed, 0 broken; 1 item in" in said("--prune")[0]
