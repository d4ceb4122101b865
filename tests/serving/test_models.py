"""Models: each is loaded once, failures can be retried, and collections find their model."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from model_shelf import KB, Shelf, sample
from waiting import until

from nnclr_hub.errors import FingerprintMismatch, NotReady, UnknownModel
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Workbench
from serving.models import Engines

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
