"""Writes that other processes acknowledge during a re-embedding are kept."""

import threading
from pathlib import Path

import numpy as np
import pytest
from store.milvus_servers import lite_server

from nnclr_hub.errors import CollectionMoving, NNCLRHubError, StoreError
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.store.embedded.store import EmbeddedStore
from nnclr_hub.workbench import Encoders, NewImage, Workbench
from nnclr_hub.workbench.reembedding import abandon, reembed


class ForMany(EmbeddedStore):
    """A store that several processes may write to; here each workbench plays one process."""

    single_writer = False


@pytest.fixture(scope="module")
def other(make_model) -> str:
    """Another encoder with vectors of the same length, which no store could tell apart."""
    return str(make_model(seed=1))


@pytest.fixture(scope="module")
def encoders(model) -> Encoders:
    return Encoders(str(model), device="cpu")


@pytest.fixture(params=["stand-in", pytest.param("milvus", marks=pytest.mark.scale)])
def benches(request, encoders, photos, tmp_path):
    """Of two processes; the photos are in the collection c."""
    if request.param == "stand-in":
        with ForMany(tmp_path / "store") as store:
            one, two = Workbench(encoders, store), Workbench(encoders, store)
            one.index_folder("c", photos)
            yield one, two
        return
    with lite_server(tmp_path) as server, open_store(server.uri) as first, open_store(server.uri) as second:
        one, two = Workbench(encoders, first), Workbench(encoders, second)
        one.index_folder("c", photos)
        yield one, two


class Stopped(Exception):
    pass


def stop(done, total):
    raise Stopped


def writes(bench, image_files, folder):
    """Yield every kind of write to c."""
    vector = bench.models.get().embed([image_files[0]])[0]
    yield lambda: bench.add_images("c", [NewImage("sent", image_files[0])])
    yield lambda: bench.upsert("c", [Item("put", vector)])
    yield lambda: bench.delete("c", [bench.collection("c").scroll(limit=1).items[0].id])
    yield lambda: bench.index_folder("c", folder)


def test_other_processes_are_refused_from_the_first_step_to_the_end(benches, other, image_files, tmp_path):
    here, elsewhere = benches
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "new.jpg").write_bytes(Path(image_files[3]).read_bytes())
    refused = 0

    def intervene(done, total):
        nonlocal refused
        for write in writes(elsewhere, image_files, folder):
            with pytest.raises(CollectionMoving):
                write()
            refused += 1

    report = reembed(here, "c", other, progress=intervene)
    assert refused >= 4
    assert (report.items, report.left_out) == (60, ())
    assert elsewhere.add_images("c", [NewImage("sent", image_files[0])]) == [None]
    expected = here.models.get(other).embed([image_files[0]])[0]
    np.testing.assert_allclose(here.collection("c").get(["sent"])[0].vector, expected, atol=1e-4)


def test_a_write_that_a_re_embedding_overtakes_is_not_acknowledged(benches, other):
    """The write starts before the re-embedding, and ends in its middle or after the swap."""
    here, elsewhere = benches
    vector = np.ones(here.collection("c").spec.dim)

    def overtaken(intervene, write):
        with elsewhere.writing("c") as (target,):
            intervene()
            write(target.collection)

    def half():
        with pytest.raises(Stopped):
            reembed(here, "c", other, progress=stop)

    with pytest.raises(CollectionMoving):
        overtaken(half, lambda old: old.upsert([Item("half", vector)]))
    abandon(here, "c")
    with pytest.raises(CollectionMoving):
        overtaken(lambda: reembed(here, "c", other, skip_missing=True), lambda old: old.delete(["half"]))


def test_an_interrupted_move_blocks_other_writers_until_it_is_abandoned(benches, other, image_files):
    here, elsewhere = benches
    with pytest.raises(Stopped):
        reembed(here, "c", other, progress=stop)
    with pytest.raises(CollectionMoving):
        elsewhere.add_images("c", [NewImage("sent", image_files[0])])
    abandon(here, "c")
    assert elsewhere.add_images("c", [NewImage("sent", image_files[0])]) == [None]


def test_changed_images_can_be_indexed_after_a_move_that_skips_them(benches, other, image_files, tmp_path):
    """The other process cannot write before the collection has moved."""
    here, elsewhere = benches
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "new.jpg").write_bytes(Path(image_files[3]).read_bytes())
    here.index_folder("c", folder)
    (folder / "new.jpg").write_bytes(Path(image_files[4]).read_bytes())
    with pytest.raises(StoreError):
        reembed(here, "c", other)
    with pytest.raises(CollectionMoving):
        elsewhere.index_folder("c", folder)
    assert reembed(here, "c", other, skip_missing=True).items == 60
    assert elsewhere.index_folder("c", folder).added == 1


def test_acknowledged_writes_of_two_processes_are_kept(benches, other, image_files):
    """One process uploads and deletes continuously while the other re-embeds."""
    here, elsewhere = benches
    data = Path(image_files[9]).read_bytes()
    finished, kept, gone, failures = threading.Event(), set(), set(), []

    def write():
        number = 0
        while not finished.is_set() or len(kept) < 20:
            number += 1
            try:
                assert elsewhere.add_images("c", [NewImage(f"sent-{number}", data)]) == [None]
                kept.add(f"sent-{number}")
                if number % 3 == 0:
                    elsewhere.delete("c", [f"sent-{number}"])
                    kept.discard(f"sent-{number}")
                    gone.add(f"sent-{number}")
            except CollectionMoving:
                finished.wait(0.01)
            except NNCLRHubError as error:
                failures.append(error)
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        # images uploaded before the move have no file; they may be left out if the report names them
        report = reembed(here, "c", other, skip_missing=True)
    finally:
        finished.set()
        writer.join()
    assert not failures
    left_out = {name for name, _ in report.left_out}
    there = {item.id for item in here.collection("c").scroll(limit=1000, with_vector=False).items}
    assert kept - left_out <= there
    assert not gone & there
