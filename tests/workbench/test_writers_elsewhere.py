"""Writes that other processes acknowledge during a re-embedding are kept."""

import io
import random
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from store.milvus_servers import lite_server

from nnclr_hub.encoder.image_reading import PLAIN
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


# ---- every order of the calls of two processes


class Embedder:
    """An encoder whose vectors are known without a network; its source is one letter."""

    embed_dim = 4
    reading = PLAIN

    def __init__(self, source: str) -> None:
        self.name, self.fingerprint = source, source * 8

    def embed_each(self, images):
        return [np.full(4, ord(self.name), np.float32) for _ in images]


class Embedders:
    default = "a"

    def get(self, source=None):
        return Embedder(source or "a")

    def by_fingerprint(self, fingerprint):
        return Embedder(fingerprint[0])


class Turns:
    """Let one of two processes run at a time; a random generator decides which one makes the next call."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._share, self._longest = self._random.choice([0.05, 0.2, 0.5, 0.8]), self._random.choice([1, 3, 10, 30])
        self._running, self._left, self._alive = "writer", 1, {"writer", "mover"}
        self._changed = threading.Condition()

    def wait(self, process: str) -> None:
        with self._changed:
            self._left -= 1
            if self._left <= 0 and self._running == process:
                self._next()
            self._changed.wait_for(lambda: self._running == process)

    def end(self, process: str) -> None:
        with self._changed:
            self._alive.discard(process)
            self._next()

    def _next(self) -> None:
        self._left = self._random.randint(1, self._longest)
        chosen = "writer" if self._random.random() < self._share else "mover"
        self._running = chosen if chosen in self._alive else next(iter(self._alive), chosen)
        self._changed.notify_all()


class InTurns:
    """A store or collection as one process sees it: it waits for its turn before and after every call."""

    def __init__(self, inner, process: str, turns: Turns) -> None:
        self._inner, self._process, self._turns = inner, process, turns

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            self._turns.wait(self._process)
            result = found(*arguments, **options)
            self._turns.wait(self._process)
            is_collection = hasattr(result, "upsert")
            return InTurns(result, self._process, self._turns) if is_collection else result

        return call


@pytest.mark.parametrize(
    "seeds", [range(24), pytest.param(range(24, 1000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_acknowledged_writes_are_kept_in_every_order_of_calls(seeds, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    for number in range(3):
        (photos / f"{number}.png").write_bytes(file.getvalue())
    for seed in seeds:
        with ForMany(tmp_path / str(seed)) as store:
            Workbench(Embedders(), store).index_folder("c", photos)
            _check_one_order(store, file.getvalue(), seed)


def _check_one_order(store, image: bytes, seed: int) -> None:
    turns = Turns(seed)
    here, elsewhere = (Workbench(Embedders(), InTurns(store, process, turns)) for process in ("mover", "writer"))
    kept, gone, failures, moved = set(), set(), [], threading.Event()

    def write():
        try:
            for number in range(200):
                if moved.is_set() and number > 8:
                    break
                id = f"sent-{number}"
                try:
                    assert elsewhere.add_images("c", [NewImage(id, image, thumbnail=False)]) == [None]
                    kept.add(id)
                    if number % 3 == 0:
                        kept.discard(id)
                        elsewhere.delete("c", [id])
                        gone.add(id)
                except CollectionMoving:
                    pass
        except NNCLRHubError as error:
            failures.append(error)
        finally:
            turns.end("writer")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        turns.wait("mover")
        for _ in range(50):
            with suppress(StoreError):  # a write that started before the move changed the old collection: repeat
                report = reembed(here, "c", "b", skip_missing=True)
                break
    finally:
        moved.set()
        turns.end("mover")
        writer.join()
    there = {item.id for item in store.get("c").scroll(limit=1000, with_vector=False).items}
    assert not failures, f"order {seed}"
    assert kept - {name for name, _ in report.left_out} <= there, f"order {seed}"
    assert not gone & there, f"order {seed}"
