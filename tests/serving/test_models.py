"""Several models: each is loaded once, idle ones make room, and whoever works with one keeps it."""

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_encoder import FakeEncoder

from nnclr_hub import load_encoder
from nnclr_hub.errors import (
    FingerprintMismatch,
    InvalidRequest,
    ModelError,
    NotReady,
    Overloaded,
    RateLimited,
    UnknownModel,
)
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Workbench
from serving.memory import weight_of
from serving.models import Engines
from serving.security.rates import Allowance, Buckets, use
from serving.settings import Settings
from serving.telemetry import Metrics

KB = 250  # weights of a thousand bytes


class Shelf:
    """Loads fake encoders and counts how often."""

    def __init__(self, **weights: int) -> None:
        self.weights = weights
        self.files: dict[str, int] = {}
        self.loads: list[str] = []
        self.loading = lambda: None
        self.made: dict[str, FakeEncoder] = {}
        self.wait = threading.Event()
        self.wait.set()

    def __call__(self, source: str) -> FakeEncoder:
        self.loads.append(source)
        self.loading()
        self.wait.wait(10)
        if source not in self.weights:
            raise UnknownModel(f"There is no {source}.")
        self.made[source] = FakeEncoder(name=source, fingerprint=source[0], weights=self.weights[source])
        return self.made[source]

    def weigh(self, source: str) -> int:
        """What the files say; most tests have none."""
        return self.files.get(source, 0)


@pytest.fixture
def make():
    made = []

    def start(shelf: Shelf, **settings) -> Engines:
        made.append(Engines("a", Settings(decode_threads=1, **settings), Metrics(), load=shelf, weigh=shelf.weigh))
        return made[-1]

    yield start
    for engines in made:
        engines.close(0.2)


def sample(engines: Engines, name: str) -> float | None:
    return engines._memory._metrics.registry.get_sample_value(name)


def until(condition, seconds=10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def test_callers_at_once_load_a_model_once(make):
    shelf = Shelf(a=KB)
    engines = make(shelf)
    shelf.wait.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(lambda: engines.get().embed_each([b"7"])) for _ in range(8)]
        until(lambda: shelf.loads == ["a"])
        shelf.wait.set()
        assert [one.result()[0][0] for one in asked] == [7] * 8
    assert shelf.loads == ["a"]
    assert sample(engines, "nnclr_models_loaded") == 1
    assert sample(engines, "nnclr_model_bytes") == 1000


def test_loading_one_model_does_not_hold_up_another(make):
    shelf = Shelf(a=KB, b=KB)
    engines = make(shelf)
    engines.get("a")
    shelf.wait.clear()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(engines.get, "b")
        until(lambda: shelf.loads == ["a", "b"])
        assert engines.get("a").embed_each([b"1"])[0][0] == 1
        assert asyncio.run(ask(engines, "a")) == 1
        assert not loading.done()
        shelf.wait.set()
        assert loading.result().name == "b"


async def ask(engines: Engines, source: str) -> float:
    model = await engines.get_async(source)
    return (await model.embed_each_async([b"1"]))[0][0]


def test_a_load_that_fails_is_told_to_all_and_can_be_tried_again(make):
    shelf = Shelf()
    engines = make(shelf)
    shelf.wait.clear()
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(engines.get, "b") for _ in range(3)]
        until(lambda: shelf.loads == ["b"] and engines._memory._slots["b"].holders == 3)
        shelf.wait.set()
        for one in asked:
            with pytest.raises(UnknownModel):
                one.result()
    assert "b" not in engines.served()
    shelf.weights["b"] = KB
    assert asyncio.run(ask(engines, "b")) == 1
    assert shelf.loads == ["b", "b"]
    assert "b" in engines.served()


def test_the_one_unused_for_longest_makes_room_and_comes_back(make):
    shelf = Shelf(a=KB, b=KB, c=KB)
    engines = make(shelf, model_memory=2500)
    a, b = engines.get("a"), engines.get("b")
    a.embed_each([b"1"])
    engines.get("c")
    assert [engines.loaded(source) is not None for source in "abc"] == [True, False, True]
    assert b.embed_each([b"2"])[0][0] == 2
    assert [engines.loaded(source) is not None for source in "abc"] == [False, True, True]
    assert shelf.loads == ["a", "b", "c", "b"]
    assert asyncio.run(a.embed_each_async([b"3"]))[0][0] == 3
    assert sample(engines, "nnclr_models_loaded") == 2
    assert sample(engines, "nnclr_model_bytes") == 2000
    assert sample(engines, "nnclr_model_evictions_total") == 3
    assert threading.active_count() < 40


def test_a_model_at_work_is_never_put_out(make):
    shelf, release = Shelf(a=KB, b=KB), threading.Event()
    engines = make(shelf, model_memory=1500)
    a = engines.get("a")
    shelf.made["a"].before = lambda: release.wait(10)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(a.embed_each, [b"1"])
        until(lambda: engines.in_work == 1)
        with pytest.raises(Overloaded, match="at work"):
            engines.get("b")
        release.set()
        assert asked.result()[0][0] == 1
    assert engines.get("b").embed_each([b"2"])[0][0] == 2
    assert engines.loaded("a") is None


def test_a_model_that_can_never_fit_is_refused_by_the_settings_name(make):
    engines = make(Shelf(a=KB, b=10 * KB), model_memory="1.5kB")
    engines.get("a")
    with pytest.raises(ModelError, match="NNCLR_MODEL_MEMORY"):
        engines.get("b")
    assert engines.loaded("a") is not None
    with pytest.raises(InvalidRequest, match="NNCLR_MODEL_MEMORY"):
        Settings.read(model_memory="much")


def test_room_is_made_before_a_model_is_loaded(make):
    """Else both would be in memory for a while, which is what the limit is there to prevent."""
    shelf = Shelf(a=KB, b=KB, c=KB)
    shelf.files = {"a": 1000, "b": 1000, "c": 1600}
    engines = make(shelf, model_memory=1500)
    engines.get("a")
    seen = []
    shelf.loading = lambda: seen.append((engines.loaded("a"), sample(engines, "nnclr_model_bytes")))
    engines.get("b")
    assert seen == [(None, 1000)]
    with pytest.raises(ModelError, match="NNCLR_MODEL_MEMORY"):
        engines.get("c")
    assert shelf.loads == ["a", "b"]
    assert (sample(engines, "nnclr_models_loaded"), sample(engines, "nnclr_model_bytes")) == (1, 1000)


def test_a_load_that_fails_gives_its_room_back(make):
    shelf = Shelf(a=KB)
    shelf.files = {"b": 1000}
    engines = make(shelf, model_memory=1500)
    with pytest.raises(UnknownModel):
        engines.get("b")
    assert sample(engines, "nnclr_model_bytes") == 0
    assert engines.get("a").embed_each([b"1"])[0][0] == 1


def test_a_file_tells_what_a_model_will_take(model):
    loaded = sum(one.nbytes for one in load_encoder(str(model), device="cpu").backbone.state_dict().values())
    assert loaded <= weight_of(str(model)) < loaded + 100_000
    assert weight_of("random:test_resnet@0") == 0
    with pytest.raises(UnknownModel):
        weight_of("no/where")


def test_many_callers_and_little_room_still_give_everyone_their_vectors(make):
    shelf = Shelf(a=KB, b=KB, c=KB)
    engines = make(shelf, model_memory=1000)
    failures = []

    def use(i: int) -> None:
        model = "abc"[i % 3]
        for attempt in range(200):
            try:
                assert engines.get(model).embed_each([str(i).encode()])[0][0] == i
                return
            except Overloaded:
                time.sleep(0.01 * (attempt % 5))
        failures.append(i)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(60)))
    assert failures == []
    assert sample(engines, "nnclr_models_loaded") == 1


def test_weights_that_changed_while_a_model_was_out_are_noticed(make):
    shelf = Shelf(a=KB, b=KB)
    engines = make(shelf, model_memory=1000)
    a = engines.get("a")
    engines.get("b")
    load = engines._memory._load
    engines._memory._load = lambda source: FakeEncoder(name=source, fingerprint="other", weights=KB)
    with pytest.raises(ModelError, match="replaced"):
        a.embed_each([b"1"])
    engines._memory._load = load
    assert engines.get("a").fingerprint == "other"


def test_who_asks_from_a_thread_counts_as_a_request_does(make):
    """The page does; a job, which no request waits for, does not."""
    engines = make(Shelf(a=KB))
    model, allowed = engines.get("a"), Allowance("x", Buckets(0), Buckets(3))

    def work() -> None:
        use(allowed)
        model.embed_each([b"1", b"2"])
        with pytest.raises(RateLimited, match="3 pictures a minute"):
            model.tokens([b"1", b"2"])
        model.embed([b"1"])

    contextvars.copy_context().run(work)
    assert len(model.embed([b"1"] * 5)) == 5


def test_closing_ends_every_engine_and_loads_none_any_more(make):
    shelf = Shelf(a=KB, b=KB)
    engines = make(shelf)
    model = engines.get("a")
    engines.close()
    with pytest.raises(NotReady):
        model.embed_each([b"1"])
    with pytest.raises(NotReady):
        engines.get("b")


def test_a_collection_finds_its_model_by_fingerprint_whatever_it_was_called(make, tmp_path):
    shelf = Shelf(a=KB, another=KB, b=KB)
    engines = make(shelf)
    engines.get("a")
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(engines, store)
        same = store.create("same", CollectionSpec(2, fingerprint="a", model="/gone/elsewhere"))
        assert bench.embedder_of(same).name == "a"
        assert shelf.loads == ["a"]
        other = store.create("other", CollectionSpec(2, fingerprint="b", model="b"))
        assert bench.embedder_of(other).name == "b"
        lost = store.create("lost", CollectionSpec(2, fingerprint="x", model="/gone/too"))
        with pytest.raises(UnknownModel, match="/gone/too"):
            bench.embedder_of(lost)
        with pytest.raises(FingerprintMismatch):
            bench.embedder_of(same, "b")


def test_before_anything_is_loaded_the_default_has_its_turn(make, tmp_path):
    engines = make(Shelf(a=KB))
    with open_store(str(tmp_path / "store")) as store:
        moved = store.create("moved", CollectionSpec(2, fingerprint="a", model="/gone"))
        assert Workbench(engines, store).embedder_of(moved).name == "a"


def test_the_real_models_come_and_go(model, make_model, pictures):
    second = make_model(seed=1)
    engines = Engines(str(model), Settings(model_memory=500_000, decode_threads=1))
    want = {source: engines.get(source).embed(pictures[:3]) for source in (str(model), str(second))}
    assert engines.loaded(str(model)) is None
    for source, vectors in want.items():
        np.testing.assert_allclose(engines.get(source).embed(pictures[:3]), vectors, atol=1e-6)
    assert not np.allclose(*want.values())
    engines.close()
