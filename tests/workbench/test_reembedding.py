"""A collection is re-embedded while it is written, and nothing that was acknowledged is lost."""

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nnclr_hub.errors import CollectionNotFound, FingerprintMismatch, InvalidRequest, NNCLRHubError, StoreError
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.folder.store import EmbeddedStore
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.workbench import Encoders, FolderRequest, NewImage, SearchQuery, Workbench, reembedding
from nnclr_hub.workbench.duplicates import exact_duplicates
from nnclr_hub.workbench.metadata import PIXEL_HASH
from nnclr_hub.workbench.reembedding import abandon, reembed


@pytest.fixture(scope="module")
def other(make_model) -> str:
    """Another encoder, with vectors of another length."""
    return str(make_model(model_args={"channels": [8, 16, 24, 40]}, seed=1))


@pytest.fixture(scope="module")
def encoders(model) -> Encoders:
    return Encoders(str(model), device="cpu")


@pytest.fixture
def bench(encoders, folder, tmp_path, monkeypatch):
    """With the photos in the collection c."""
    monkeypatch.setattr(reembedding, "BATCH", 16)
    with open_store(str(tmp_path / "store")) as store:
        made = Workbench(encoders, store)
        made.index_folder("c", folder)
        yield made


def contents(collection) -> dict[str, Item]:
    ids = [item.id for item in collection.scroll(limit=1000, with_vector=False).items]
    return {item.id: item for item in collection.get(ids)}


def assert_holds_the_folder(bench, source: str, folder: Path, name: str = "c") -> None:
    """Every vector is that of the file, by this encoder."""
    items = contents(bench.collection(name))
    paths = sorted(folder.rglob("*.jpg"))
    vectors = dict(zip(paths, bench.models.get(source).embed(paths), strict=True))
    assert {Path(item.metadata["root"], item.metadata["path"]) for item in items.values()} == set(paths)
    for item in items.values():
        np.testing.assert_allclose(item.vector, vectors[Path(item.metadata["root"], item.metadata["path"])], atol=1e-4)


def copy_of(bench, source: str):
    """Return the unfinished copy of c."""
    return bench.collection(f"c.{bench.models.get(source).fingerprint[:8]}")


class Stopped(Exception):
    pass


def stop(done, total):
    raise Stopped


def test_the_name_refers_to_the_new_vectors_and_the_old_ones_are_kept(bench, other, folder):
    before = contents(bench.collection("c"))
    seen = []
    report = reembed(bench, "c", other, progress=lambda done, total: seen.append((done, total)))
    assert (report.items, report.embedded, report.skipped) == (60, 60, ())
    assert seen[-1] == (60, 60)
    assert_holds_the_folder(bench, other, folder)
    after = contents(bench.collection("c"))
    for id, item in before.items():
        assert (after[id].metadata, after[id].thumbnail) == (item.metadata, item.thumbnail)
    assert contents(bench.collection(report.kept)).keys() == before.keys()
    assert (report.collection, report.kept) == ("c", "c.old")
    assert ([info.name for info in bench.store.list()], bench.store.aliases()) == (["c", "c.old"], {})
    query = folder / "cat" / "00.jpg"
    best = bench.search("c", SearchQuery.of(image=query, k=1))[0]
    assert best.metadata["path"] == "cat/00.jpg"
    assert best.score == pytest.approx(1, abs=1e-4)
    assert reembed(bench, "c", other).collection is None


def test_an_interrupted_re_embedding_continues(bench, other, folder):
    with pytest.raises(Stopped):
        reembed(bench, "c", other, progress=stop)
    half = copy_of(bench, other).count()
    assert 0 < half < 60
    assert bench.search("c", SearchQuery.of(image=folder / "cat" / "00.jpg", k=1))[0].score == pytest.approx(
        1, abs=1e-4
    )
    report = reembed(bench, "c", other)
    assert (report.items, report.embedded) == (60, 60 - half)
    assert_holds_the_folder(bench, other, folder)


def test_a_collection_is_re_embedded_repeatedly_and_its_aliases_move_along(bench, model, other, folder):
    bench.store.alias("current", "c")
    bench.store.alias("best", "c")
    kept = [reembed(bench, "current", source).kept for source in (other, str(model), other)]
    assert kept == ["c.old", "c.old2", "c.old3"]
    assert bench.store.aliases() == {"best": "c", "current": "c"}
    assert [info.name for info in bench.store.list()] == ["c", *kept]
    assert_holds_the_folder(bench, other, folder, "current")


def test_writes_between_two_calls_are_in_the_new_collection(bench, other, folder, image_files):
    """New, changed, deleted, edited, and one whose image can no longer be read."""
    with pytest.raises(Stopped):
        reembed(bench, "c", other, progress=stop)
    by_path = {item.metadata["path"]: id for id, item in contents(bench.collection("c")).items()}
    changed, gone, new = folder / "cat" / "00.jpg", folder / "cat" / "01.jpg", folder / "new.jpg"
    shutil.copy(image_files[-1], changed)
    os.utime(changed, (1, 1))
    gone.unlink()
    shutil.copy(image_files[5], new)
    assert bench.index_folder("c", FolderRequest(folder, prune=True)).removed == 1
    bench.update_metadata("c", {"label": "edited"}, ids=[by_path["cat/02.jpg"]])
    bench.delete("c", [by_path["cat/03.jpg"]])
    (folder / "cat" / "03.jpg").unlink()
    bench.collection("c").change_indexed(["label", "size"])
    report = reembed(bench, "c", other)
    assert (report.items, report.skipped) == (59, ())
    assert_holds_the_folder(bench, other, folder)
    assert bench.collection("c").get([by_path["cat/02.jpg"]])[0].metadata["label"] == "edited"
    assert bench.collection("c").spec.indexed == ("label", "size")


def test_edits_copy_metadata_without_embedding_again(bench, other, monkeypatch):
    edited = []

    def edit(done, total):
        if not edited:
            edited.append(bench.update_metadata("c", {"label": "edited"}, where={"must_not": [{"ids": []}]}))

    report = reembed(bench, "c", other, progress=edit)
    assert (edited, report.embedded) == ([60], 60)
    assert {item.metadata["label"] for item in contents(bench.collection("c")).values()} == {"edited"}


def test_a_log_that_was_trimmed_meanwhile_is_replaced_by_a_comparison(encoders, other, folder, tmp_path):
    with EmbeddedStore(tmp_path / "store", settings=StoreSettings(kept_changes=1)) as store:
        bench = Workbench(encoders, store)
        bench.index_folder("c", folder)
        ids = [item.id for item in store.get("c").scroll().items]
        left = iter(ids[:2])

        def trim(done, total):
            for id in left:
                bench.delete("c", [id])
                store.get("c").compact()

        assert reembed(bench, "c", other, progress=trim).items == 58
        assert not bench.collection("c").get(ids[:2])
        with pytest.raises(NNCLRHubError, match="log"):  # the premise of this test
            store.get("c.old").changes(60, 10)


@pytest.mark.parametrize("changed", [{"model_args": {"channels": [8, 16, 24, 40]}}, {}], ids=["other-dim", "same-dim"])
def test_concurrent_writers_lose_and_resurrect_nothing(bench, make_model, folder, image_files, changed, tmp_path):
    """Writers store, delete and edit without a pause, from before the build until after the swap.

    Readers see all items of one encoder, at any moment.
    """
    target = str(make_model(**changed, seed=1))
    old, new = bench.embedder(), bench.models.get(target)
    source = tmp_path / "sent.jpg"
    shutil.copy(image_files[9], source)
    stat = source.stat()
    record = {"root": str(tmp_path), "path": source.name, "size": stat.st_size, "mtime": stat.st_mtime}
    finished, failures = threading.Event(), []
    vectors = {one.fingerprint: one.embed([source])[0] for one in (old, new)}
    acknowledged: dict[str, int | None] = {}  # edits by id; None: deleted

    def write(number: int) -> None:
        count = 0
        try:
            while not finished.is_set() or count % 50:
                id = f"sent-{number}-{count}"
                if count % 2:
                    assert bench.add_images("c", [NewImage(id, source, record, thumbnail=False)]) == [None]
                else:
                    fingerprint = bench.collection("c").spec.fingerprint
                    try:
                        bench.upsert("c", [Item(id, vectors[fingerprint], record)], fingerprint=fingerprint)
                    except FingerprintMismatch:  # the swap was faster
                        count += 1
                        continue
                acknowledged[id] = 0
                if count % 3 == 0:
                    assert bench.delete("c", [id]) == 1
                    acknowledged[id] = None
                elif count % 5 == 0:
                    assert bench.update_metadata("c", {"edit": count}, ids=[id]) == 1
                    acknowledged[id] = count
                count += 1
        except BaseException as error:  # noqa: BLE001 - the test asserts that there are none
            failures.append(error)

    def read() -> None:
        try:
            while not finished.is_set():
                collection = bench.collection("c")
                items = collection.scroll(limit=40).items
                assert len(items) == 40
                assert {len(item.vector) for item in items} == {collection.spec.dim}
                matches = bench.search("c", SearchQuery.of(image=folder / "cat" / "00.jpg", k=1))
                assert matches[0].metadata["path"] == "cat/00.jpg"
        except NNCLRHubError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=[number]) for number in range(3)] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    try:
        report = reembed(bench, "c", target)
        time.sleep(0.1)
    finally:
        finished.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert report.skipped == ()
    there = contents(bench.collection("c"))
    assert len(acknowledged) > 100
    assert {id for id in there if id.startswith("sent")} == {
        id for id, edit in acknowledged.items() if edit is not None
    }
    for id, edit in acknowledged.items():
        if edit is not None:
            assert there[id].metadata.get("edit", 0) == edit
            np.testing.assert_allclose(there[id].vector, vectors[new.fingerprint], atol=1e-4)
    with pytest.raises(FingerprintMismatch):
        bench.upsert("c", [Item("late", vectors[old.fingerprint])], fingerprint=old.fingerprint)


def test_items_without_their_image_are_refused_by_name_or_skipped(bench, other, folder, image_files):
    (folder / "cat" / "00.jpg").unlink()
    shutil.copy(image_files[-1], folder / "cat" / "01.jpg")
    (folder / "cat" / "02.jpg").write_bytes(b"nothing")
    bench.add_images("c", [NewImage("sent", image_files[7])])
    with pytest.raises(StoreError) as refusal:
        reembed(bench, "c", other)
    for part in (
        "cat/00.jpg: its file is missing",
        "cat/01.jpg: its file has changed",
        "--skip-missing",
        "--prune",
        "dropped",
    ):
        assert part in str(refusal.value)
    assert bench.collection("c").spec.dim == 32
    report = reembed(bench, "c", other, skip_missing=True)
    assert (report.items, report.embedded) == (57, 0)
    assert {path for path, _ in report.skipped} == {"cat/00.jpg", "cat/01.jpg", "cat/02.jpg", "sent"}
    assert dict(report.skipped)["sent"] != ""
    assert bench.collection(report.kept).count() == 61


@pytest.mark.parametrize("kind", ["sent", "changed"])
def test_a_collection_without_readable_images_is_refused_and_nothing_remains(bench, other, image_files, tmp_path, kind):
    """As one whose images a client has sent, be it with a name for the folder that they came from."""
    (tmp_path / "two").mkdir()
    if kind == "sent":
        bench.store.create("d", bench.collection("c").spec)
        origin = {"root": "photos@laptop", "path": "cat/00.jpg"}
        bench.add_images("d", [NewImage("a", image_files[0], origin), NewImage("b", image_files[1])])
    else:
        for number in (0, 1):
            for name in "ab":
                shutil.copy(image_files[number], tmp_path / "two" / f"{name}.jpg")
            if number == 0:
                bench.index_folder("d", tmp_path / "two")
    before = {info.name for info in bench.store.list()}
    for skip_missing in (False, True):
        with pytest.raises(StoreError) as refusal:
            reembed(bench, "d", other, skip_missing=skip_missing)
        parts = [
            part in str(refusal.value)
            for part in ("cat/00.jpg", "photos@laptop", f"--model {other}", "another machine")
        ]
        assert parts == [kind == "sent"] * 4
        assert {info.name for info in bench.store.list()} == before
        assert bench.store.aliases() == {}
    assert bench.collection("d").count() == 2
    if kind == "changed":  # it must be indexed again
        assert bench.index_folder("d", tmp_path / "two").updated == 2
        assert reembed(bench, "d", other).items == 2


def test_touched_files_are_the_same_images_if_there_is_a_hash_of_their_pixels(bench, other, folder):
    collection = bench.collection("c")
    stripped = [
        replace(item, metadata={key: value for key, value in item.metadata.items() if key != PIXEL_HASH})
        for item in contents(collection).values()
        if item.metadata["label"] == "coffee"
    ]
    collection.upsert(stripped)
    for path in [*(folder / "cat").iterdir(), folder / "coffee" / "00.jpg"]:
        os.utime(path, (1, 1))
    with pytest.raises(StoreError, match="1 of 60 items"):
        reembed(bench, "c", other)
    (folder / "coffee" / "00.jpg").unlink()
    assert reembed(bench, "c", other, skip_missing=True).items == 59


def test_unfinished_copies_are_dropped_on_request(bench, other, make_model):
    third = str(make_model(seed=3))
    assert abandon(bench, "c") == []
    for source in (other, third):
        with pytest.raises(Stopped):
            reembed(bench, "c", source, progress=stop)
    copies = [copy_of(bench, source).name for source in (other, third)]
    bench.store.alias("best", "c")
    bench.store.create("c.other", bench.collection("c").spec)
    assert sorted(abandon(bench, "best")) == sorted(copies)
    assert [info.name for info in bench.store.list()] == ["c", "c.other"]
    assert reembed(bench, "c", third).items == 60
    with pytest.raises(CollectionNotFound):
        abandon(bench, "nothing")


@pytest.mark.parametrize(
    ("address", "hint"), [("store", "nnclr store reembed c"), ("x.milvus.db", "nnclr store alias")]
)
def test_the_hint_about_another_encoder_is_something_that_the_store_can_do(encoders, other, tmp_path, address, hint):
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    with open_store(str(tmp_path / address)) as store:
        bench = Workbench(encoders, store)
        lost = store.create("c", CollectionSpec(2, fingerprint="x", model="/gone"))
        for work in (lambda: lost.check(bench.models.get(other)), lambda: bench.embedder_of(lost)):
            with pytest.raises(FingerprintMismatch, match=hint):
                work()


def test_a_collection_in_milvus_is_refused_before_a_model_is_loaded(encoders, tmp_path):
    pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    with open_store(str(tmp_path / "x.milvus.db")) as store:
        store.create("c", CollectionSpec(2))
        with pytest.raises(InvalidRequest, match="nnclr store alias"):
            reembed(Workbench(encoders, store), "c", "/no/such/model")
        assert store.names() == ["c"]


def test_a_collection_with_the_name_of_the_copy_is_not_overwritten(bench, other):
    encoder = bench.models.get(other)
    spec = replace(bench.collection("c").spec, dim=encoder.embed_dim, fingerprint=encoder.fingerprint, precision="f16")
    bench.store.create(f"c.{encoder.fingerprint[:8]}", spec)
    with pytest.raises(InvalidRequest):
        reembed(bench, "c", other)


def test_indexed_images_with_the_same_pixels_are_found(bench, folder, image_files):
    shutil.copy(folder / "cat" / "00.jpg", folder / "copy.jpg")
    bench.index_folder("c", folder)
    bench.add_images("c", [NewImage("sent", (folder / "cat" / "00.jpg").read_bytes())])
    (group,) = exact_duplicates(bench.collection("c"))
    assert len(group) == 3
    assert "sent" in group
