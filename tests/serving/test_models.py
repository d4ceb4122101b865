"""Models: each is loaded once, collections find their model, and idle ones are unloaded if memory is short."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from model_shelf import KB, Shelf, sample
from waiting import until

from nnclr_hub import load_encoder
from nnclr_hub.errors import FingerprintMismatch, InvalidRequest, ModelError, NotReady, Overloaded, UnknownModel
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Workbench
from serving.models import Engines, weight_of
from serving.settings import Settings

# ---- models: each is loaded once, failures can be retried, and collections find their model


def test_concurrent_callers_load_a_model_once(make_engines):
    shelf = Shelf(a=KB)
    engines = make_engines(shelf)
    shelf.wait.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(lambda: engines.get().embed_each([b"7"])) for _ in range(8)]
        until(lambda: shelf.loads == ["a"])
        shelf.wait.set()
        assert [one.result()[0][0] for one in answers] == [7] * 8
    assert shelf.loads == ["a"]
    assert sample(engines, "nnclr_models_loaded") == 1
    assert sample(engines, "nnclr_model_bytes") == 1000


def test_loading_one_model_does_not_block_another(make_engines):
    shelf = Shelf(a=KB, b=KB)
    engines = make_engines(shelf)
    engines.get("a")
    shelf.wait.clear()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(engines.get, "b")
        until(lambda: shelf.loads == ["a", "b"])
        assert engines.get("a").embed_each([b"1"])[0][0] == 1
        assert asyncio.run(first_number(engines, "a")) == 1
        assert not loading.done()
        shelf.wait.set()
        assert loading.result().name == "b"


async def first_number(engines: Engines, source: str) -> float:
    model = await engines.get_async(source)
    return (await model.embed_each_async([b"1"]))[0][0]


def test_a_failed_load_raises_in_all_callers_and_can_be_retried(make_engines):
    shelf = Shelf()
    engines = make_engines(shelf)
    shelf.wait.clear()
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(engines.get, "b") for _ in range(3)]
        until(lambda: shelf.loads == ["b"])
        shelf.wait.set()
        for one in answers:
            with pytest.raises(UnknownModel):
                one.result()
    assert "b" not in engines.served()
    shelf.loads.clear()  # more than one if a caller came after the first failure
    shelf.weights["b"] = KB
    assert asyncio.run(first_number(engines, "b")) == 1
    assert shelf.loads == ["b"]
    assert "b" in engines.served()


def test_after_closing_no_model_works_or_loads(make_engines):
    shelf = Shelf(a=KB, b=KB)
    engines = make_engines(shelf)
    model = engines.get("a")
    engines.close()
    with pytest.raises(NotReady):
        model.embed_each([b"1"])
    with pytest.raises(NotReady):
        engines.get("b")


def test_a_collection_finds_its_model_by_fingerprint_and_not_by_name(make_engines, tmp_path):
    shelf = Shelf(a=KB, another=KB, b=KB)
    engines = make_engines(shelf)
    engines.get("a")
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(engines, store)
        same = store.create("same", CollectionSpec(2, fingerprint="a", model="/gone/elsewhere"))
        assert bench.embedder_of(same).name == "a"
        assert shelf.loads == ["a"]
        other = store.create("other", CollectionSpec(2, fingerprint="b", model="b"))
        assert bench.embedder_of(other).name == "b"
        lost = store.create("lost", CollectionSpec(2, fingerprint="x", model="/gone/too"))
        with pytest.raises(FingerprintMismatch, match=r"/gone/too.*reembed lost"):
            bench.embedder_of(lost)
        with pytest.raises(FingerprintMismatch):
            bench.embedder_of(same, "b")


def test_an_unloaded_model_gives_the_same_vectors_again(model, make_model, image_files):
    second = make_model(seed=1)
    engines = Engines(str(model), Settings(model_memory=500_000, decode_threads=1))
    want = {source: np.stack(engines.get(source).embed_each(image_files[:3])) for source in (str(model), str(second))}
    assert engines.loaded(str(model)) is None
    for source, vectors in want.items():
        np.testing.assert_allclose(np.stack(engines.get(source).embed_each(image_files[:3])), vectors, atol=1e-6)
    assert not np.allclose(*want.values())
    engines.close()


# ---- memory for models: the least recently used idle model is unloaded, and one in use never is


def test_the_least_recently_used_model_is_unloaded_and_loads_again(make_engines):
    shelf, others = Shelf(a=KB, b=KB, c=KB), threading.active_count()
    engines = make_engines(shelf, model_memory=2500)
    a, b = engines.get("a"), engines.get("b")
    per_engine = (threading.active_count() - others) / 2
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
    until(lambda: threading.active_count() - others <= 2 * per_engine)  # of the two engines that are left


def test_a_model_in_use_is_never_unloaded(make_engines):
    shelf, release = Shelf(a=KB, b=KB), threading.Event()
    engines = make_engines(shelf, model_memory=1500)
    a = engines.get("a")
    shelf.made["a"].before = lambda: release.wait(120)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(a.embed_each, [b"1"])
        until(lambda: engines.in_work == 1)
        with pytest.raises(Overloaded):
            engines.get("b")
        release.set()
        assert answer.result()[0][0] == 1
    assert engines.get("b").embed_each([b"2"])[0][0] == 2
    assert engines.loaded("a") is None


def test_a_model_that_can_never_fit_is_an_error_with_the_name_of_the_setting(make_engines):
    engines = make_engines(Shelf(a=KB, b=10 * KB), model_memory="1.5kB")
    engines.get("a")
    with pytest.raises(ModelError, match="NNCLR_MODEL_MEMORY"):
        engines.get("b")
    assert engines.loaded("a") is not None
    with pytest.raises(InvalidRequest, match="NNCLR_MODEL_MEMORY"):
        Settings.read(model_memory="much")


def test_memory_is_freed_before_a_model_loads(make_engines):
    """Otherwise both would be in memory for a while, which the limit must prevent."""
    shelf = Shelf(a=KB, b=KB, c=KB)
    shelf.files = {"a": 1000, "b": 1000, "c": 1600}
    engines = make_engines(shelf, model_memory=1500)
    engines.get("a")
    seen = []
    shelf.loading = lambda: seen.append((engines.loaded("a"), sample(engines, "nnclr_model_bytes")))
    engines.get("b")
    assert seen == [(None, 1000)]
    with pytest.raises(ModelError, match="NNCLR_MODEL_MEMORY"):
        engines.get("c")
    assert shelf.loads == ["a", "b"]
    assert (sample(engines, "nnclr_models_loaded"), sample(engines, "nnclr_model_bytes")) == (1, 1000)


def test_a_failed_load_returns_its_memory(make_engines):
    shelf = Shelf(a=KB)
    shelf.files = {"b": 1000}
    engines = make_engines(shelf, model_memory=1500)
    with pytest.raises(UnknownModel):
        engines.get("b")
    assert sample(engines, "nnclr_model_bytes") == 0
    assert engines.get("a").embed_each([b"1"])[0][0] == 1


def test_the_size_of_a_model_is_estimated_from_its_file(model):
    loaded = sum(one.nbytes for one in load_encoder(str(model), device="cpu").backbone.state_dict().values())
    assert loaded <= weight_of(str(model)) < loaded + 100_000
    assert weight_of("random:test_resnet@0") == 0
    with pytest.raises(UnknownModel):
        weight_of("no/where")


def test_many_callers_with_memory_for_one_model_all_get_their_vectors(make_engines):
    shelf = Shelf(a=KB, b=KB, c=KB)
    engines = make_engines(shelf, model_memory=1000)

    def use(i: int) -> None:
        model = "abc"[i % 3]
        number = str(i).encode()

        def answered() -> bool:
            try:
                return engines.get(model).embed_each([number])[0][0] == i
            except Overloaded:
                return False

        until(answered, pause_s=0.01)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(60)))
    assert sample(engines, "nnclr_models_loaded") == 1


def test_weights_that_changed_while_a_model_was_unloaded_are_an_error(make_engines):
    shelf = Shelf(a=KB, b=KB)
    engines = make_engines(shelf, model_memory=1000)
    a = engines.get("a")
    engines.get("b")
    shelf.fingerprints["a"] = "other"
    with pytest.raises(ModelError):
        a.embed_each([b"1"])
    assert engines.get("a").fingerprint == "other"
