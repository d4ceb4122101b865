"""Several processes write to one store: what is acknowledged while one of them re-embeds is there afterwards."""

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
    """As a store that other processes write to: to a workbench, another workbench on it is one of these."""

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
    """Every way to write to c."""
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

    def meanwhile(done, total):
        nonlocal refused
        for write in writes(elsewhere, image_files, folder):
            with pytest.raises(CollectionMoving):
                write()
            refused += 1

    report = reembed(here, "c", other, progress=meanwhile)
    assert refused >= 4
    assert (report.items, report.left_out) == (60, ())
    assert elsewhere.add_images("c", [NewImage("sent", image_files[0])]) == [None]
    expected = here.models.get(other).embed([image_files[0]])[0]
    np.testing.assert_allclose(here.collection("c").get(["sent"])[0].vector, expected, atol=1e-4)


def test_a_write_that_a_re_embedding_overtakes_is_not_acknowledged(benches, other):
    """It began before, and ends after the swap or in its middle."""
    here, elsewhere = benches
    vector = np.ones(here.collection("c").spec.dim)

    def overtaken(meanwhile, write):
        with elsewhere.writing("c") as (target,):
            meanwhile()
            write(target.collection)

    def half():
        with pytest.raises(Stopped):
            reembed(here, "c", other, progress=stop)

    with pytest.raises(CollectionMoving):
        overtaken(half, lambda old: old.upsert([Item("half", vector)]))
    abandon(here, "c")
    with pytest.raises(CollectionMoving):
        overtaken(lambda: reembed(here, "c", other, skip_missing=True), lambda old: old.delete(["half"]))


def test_what_stopped_blocks_others_until_it_is_given_up(benches, other, image_files):
    here, elsewhere = benches
    with pytest.raises(Stopped):
        reembed(here, "c", other, progress=stop)
    with pytest.raises(CollectionMoving):
        elsewhere.add_images("c", [NewImage("sent", image_files[0])])
    abandon(here, "c")
    assert elsewhere.add_images("c", [NewImage("sent", image_files[0])]) == [None]


def test_what_changed_is_taken_up_as_the_refusal_says(benches, other, image_files, tmp_path):
    """The process that is told to may not write before the collection has moved."""
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


def test_whatever_two_processes_acknowledge_is_there_afterwards(benches, other, image_files):
    """One uploads and deletes without a pause while the other re-embeds."""
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
        # what was uploaded before has no file to be made of: it may be left out if it is told
        report = reembed(here, "c", other, skip_missing=True)
    finally:
        finished.set()
        writer.join()
    assert not failures
    left_out = {name for name, _ in report.left_out}
    there = {item.id for item in here.collection("c").scroll(limit=1000, with_vector=False).items}
    assert kept - left_out <= there
    assert not gone & there
