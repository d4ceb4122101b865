"""A collection moves to another encoder: resumable, with writes to both, and never with less than was said."""

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from nnclr_hub.errors import InvalidRequest, ModelError, StoreError
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.store.replacement import drop_with_replacement
from nnclr_hub.workbench import Encoders, NewImage, SearchQuery, Workbench, reembedding
from nnclr_hub.workbench.duplicates import exact_duplicates
from nnclr_hub.workbench.image_record import PIXEL_HASH
from nnclr_hub.workbench.reembedding import abandon, reembed

NEXT = "c~next"


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


class Stopped(Exception):
    pass


def stop(done, total):
    raise Stopped


def test_the_name_refers_to_the_new_vectors_and_the_old_ones_are_kept(bench, other, folder):
    before = contents(bench.collection("c"))
    seen = []
    report = reembed(bench, "c", other, progress=lambda done, total: seen.append((done, total)))
    assert (report.items, report.embedded, report.left_out) == (60, 60, ())
    assert seen[-1] == (60, 60)
    assert_holds_the_folder(bench, other, folder)
    after = contents(bench.collection("c"))
    for id, item in before.items():
        assert (after[id].metadata, after[id].thumbnail) == (item.metadata, item.thumbnail)
    assert contents(bench.collection(report.kept)).keys() == before.keys()
    assert bench.collection("c").name == report.collection
    assert bench.store.aliases() == {"c": report.collection}
    query = folder / "cat" / "00.jpg"
    best = bench.search("c", SearchQuery.of(image=query, k=1))[0]
    assert best.metadata["path"] == "cat/00.jpg"
    assert best.score == pytest.approx(1, abs=1e-4)
    assert reembed(bench, "c", other).collection is None


def test_an_interrupted_re_embedding_continues(bench, other, folder):
    with pytest.raises(Stopped):
        reembed(bench, "c", other, progress=stop)
    half = bench.collection(NEXT).count()
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
    kept = []
    for source in (other, str(model), other):
        report = reembed(bench, "current", source)
        assert bench.store.aliases() == dict.fromkeys(("best", "current"), report.collection)
        kept.append(report.kept)
    assert {info.name for info in bench.store.list()} == {*kept, bench.collection("current").name}
    assert_holds_the_folder(bench, other, folder, "current")


def test_writes_during_re_embedding_go_to_both_collections(bench, other, folder, image_files):
    with pytest.raises(Stopped):
        reembed(bench, "c", other, progress=stop)
    changed, gone, new = folder / "cat" / "00.jpg", folder / "cat" / "01.jpg", folder / "new.jpg"
    shutil.copy(image_files[-1], changed)
    os.utime(changed, (1, 1))
    gone.unlink()
    shutil.copy(image_files[5], new)
    bench.index_folder("c", folder, prune=True)
    assert bench.add_images("c", [NewImage("sent", image_files[7].read_bytes(), {"name": "x"})]) == [None]
    assert bench.collection(NEXT).get(["sent"])[0].vector.shape == (40,)
    other_id = bench.collection("c").scroll(limit=1).items[0].id
    assert bench.delete("c", [other_id]) == 1
    assert not bench.collection(NEXT).get([other_id])
    report = reembed(bench, "c", other)
    assert (report.items, report.left_out) == (60, ())
    there = contents(bench.collection("c"))
    assert other_id not in there
    # an image that was sent has no file to be embedded from again: it was written to both
    np.testing.assert_allclose(there.pop("sent").vector, bench.models.get(other).embed([image_files[7]])[0], atol=1e-4)
    by_path = {item.metadata["path"]: item for item in there.values()}
    assert "cat/01.jpg" not in by_path
    wanted = bench.models.get(other).embed([image_files[-1]])[0]
    np.testing.assert_allclose(by_path["cat/00.jpg"].vector, wanted, atol=1e-4)
    assert "new.jpg" in by_path


def test_concurrent_writers_lose_nothing(bench, other, folder, image_files):
    """Images that come and go by name alone while the collection moves, before and after the swap."""
    data = image_files[9].read_bytes()
    finished, number = threading.Event(), 0
    failures = []

    def write():
        nonlocal number
        try:
            # an image that was sent before there is another collection to write to could not be embedded again
            while NEXT not in bench.store.aliases() and not finished.wait(0.001):
                pass
            while not finished.is_set() or number < 20:
                assert bench.add_images("c", [NewImage(f"sent-{number}", data)]) == [None]
                if number % 3 == 0:
                    assert bench.delete("c", [f"sent-{number}"]) == 1
                number += 1
        except BaseException as error:  # noqa: BLE001 - the test asserts that there are none
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        report = reembed(bench, "c", other)
    finally:
        finished.set()
        writer.join()
    assert not failures
    assert report.left_out == ()
    sent = {id for id in contents(bench.collection("c")) if id.startswith("sent")}
    assert sent == {f"sent-{n}" for n in range(number) if n % 3}
    vector = bench.models.get(other).embed([data])[0]
    for id in sent:
        np.testing.assert_allclose(bench.collection("c").get([id])[0].vector, vector, atol=1e-4)


def test_items_without_their_image_are_refused_by_name_or_left_out(bench, other, folder, image_files):
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
        "--abandon",
    ):
        assert part in str(refusal.value)
    assert bench.collection("c").spec.dim == 32
    report = reembed(bench, "c", other, skip_missing=True)
    assert (report.items, report.embedded) == (57, 0)
    assert {path for path, _ in report.left_out} == {"cat/00.jpg", "cat/01.jpg", "cat/02.jpg", "sent"}
    assert dict(report.left_out)["sent"] != ""
    assert bench.collection(report.kept).count() == 61


def test_a_collection_without_readable_images_is_refused_and_nothing_remains(bench, other, image_files):
    """As one whose images a client has sent, be it with a name for the folder that they came from."""
    bench.store.create("sent", bench.collection("c").spec)
    origin = {"root": "photos@laptop", "path": "cat/00.jpg"}
    bench.add_images("sent", [NewImage("a", image_files[0], origin), NewImage("b", image_files[1])])
    before = {info.name for info in bench.store.list()}
    for skip_missing in (False, True):
        with pytest.raises(StoreError) as refusal:
            reembed(bench, "sent", other, skip_missing=skip_missing)
        assert all(part in str(refusal.value) for part in ("cat/00.jpg", "photos@laptop", f"--model {other}"))
        assert {info.name for info in bench.store.list()} == before
        assert bench.store.aliases() == {}
    assert bench.collection("sent").count() == 2


def test_a_file_that_was_only_touched_is_still_the_same_image(bench, other, folder):
    for path in folder.rglob("*.jpg"):
        os.utime(path, (1, 1))
    assert reembed(bench, "c", other).items == 60


def test_items_without_a_pixel_hash_are_compared_by_size_and_time(bench, other, folder):
    collection = bench.collection("c")
    items = contents(collection).values()
    stripped = [
        Item(i.id, i.vector, {k: v for k, v in i.metadata.items() if k != PIXEL_HASH}, i.thumbnail) for i in items
    ]
    collection.upsert(stripped)
    os.utime(folder / "cat" / "00.jpg", (1, 1))
    with pytest.raises(StoreError):
        reembed(bench, "c", other)
    (folder / "cat" / "00.jpg").unlink()
    assert reembed(bench, "c", other, skip_missing=True).items == 59


def test_another_model_is_refused_until_the_first_move_is_abandoned(bench, other, make_model):
    third = str(make_model(seed=3))
    with pytest.raises(InvalidRequest):
        abandon(bench, "c")
    with pytest.raises(Stopped):
        reembed(bench, "c", other, progress=stop)
    with pytest.raises(InvalidRequest):
        reembed(bench, "c", third)
    half_made = bench.collection(NEXT).name
    assert abandon(bench, "c") == half_made
    assert bench.store.aliases() == {}
    assert [info.name for info in bench.store.list()] == ["c"]
    assert reembed(bench, "c", third).items == 60


@pytest.mark.parametrize("step", ["promote", "unalias"])
def test_an_interrupted_swap_is_finished_by_the_next_call(bench, other, monkeypatch, step):
    """After the marker, and after the promotion; tests/store/test_replacement.py covers every step."""

    def die(*arguments):
        raise Stopped

    bench.store.alias("best", "c")
    with monkeypatch.context() as patch:
        patch.setattr(bench.store, step, die)
        with pytest.raises(Stopped):
            reembed(bench, "c", other)
    assert bench.add_images("c", []) == []
    assert reembed(bench, "c", other).embedded == 0
    new = bench.collection("c").name
    assert bench.store.aliases() == {"best": new, "c": new}
    assert bench.collection(new).spec.dim == 40


def test_dropping_a_collection_drops_its_replacement(bench, other):
    with pytest.raises(Stopped):
        reembed(bench, "c", other, progress=stop)
    assert len(drop_with_replacement(bench.store, "c")) == 2
    assert bench.store.list() == []
    assert bench.store.aliases() == {}


def test_adding_images_names_the_missing_model(bench, make_model, image_files):
    gone = make_model(seed=5)
    with pytest.raises(Stopped):
        reembed(bench, "c", str(gone), progress=stop)
    fresh = Workbench(Encoders(bench.models.default, device="cpu"), bench.store)
    gone.rename(gone.with_name("elsewhere"))
    with pytest.raises(ModelError):
        fresh.add_images("c", [NewImage("sent", image_files[0])])
    assert fresh.collection("c").count() == 60


def test_indexed_images_with_the_same_pixels_are_found(bench, folder, image_files):
    shutil.copy(folder / "cat" / "00.jpg", folder / "copy.jpg")
    bench.index_folder("c", folder)
    bench.add_images("c", [NewImage("sent", (folder / "cat" / "00.jpg").read_bytes())])
    (group,) = exact_duplicates(bench.collection("c"))
    assert len(group) == 3
    assert "sent" in group


def test_a_folder_whose_files_all_changed_must_be_indexed_again(model, make_model, image_files, tmp_path):
    folder, other = tmp_path / "photos", str(make_model(seed=1))
    folder.mkdir()
    for name in "ab":
        shutil.copy(image_files[0], folder / f"{name}.jpg")
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.index_folder("c", folder)
        for name in "ab":
            shutil.copy(image_files[1], folder / f"{name}.jpg")
        for skip_missing in (False, True):
            with pytest.raises(StoreError) as refusal:
                reembed(bench, "c", other, skip_missing=skip_missing)
            assert "another machine" not in str(refusal.value)
            assert store.aliases() == {}
        assert bench.index_folder("c", folder).updated == 2
        assert reembed(bench, "c", other).items == 2
