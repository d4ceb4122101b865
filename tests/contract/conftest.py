"""A store of each kind, for tests that hold for all of them."""

import numpy as np
import pytest
from contract import places
from contract.places import DIM, INDEXED, PARAMS, PLACES, items
from store.milvus_servers import SERVERS

from nnclr_hub import open_store
from nnclr_hub.store.base import CollectionSpec, Item

# What REST does not have, by the tests and cases that need it. `RemoteCollection` documents it.
NOT_OVER_HTTP = {
    "the server makes thumbnails": "thumbnails_come_back",
    "the server decides which keys stay": "keep_what_shall_stay[http-keep1 a_patch_of_each_item_keeps",
    "a cursor is one of a page before": "pages_start_after_any_id",
    "a URL is short": "filters_may_name_many_ids",
    "percentiles come with matches": "few_items_have_no pairs_are_sampled the_best_of_groups_have",
    "the server chooses the fingerprint": "http-spec0 http-spec2 http-spec3 http-spec4 vectors_of_another_encoder",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if "[http" in item.name:
            for reason, names in NOT_OVER_HTTP.items():
                if any(name in item.name for name in names.split()):
                    item.add_marker(pytest.mark.skip(reason=f"REST: {reason}"))


@pytest.fixture(scope="module", params=PARAMS)
def kind(request) -> str:
    if request.param not in ("folder", "http"):
        pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    places.THUMBNAILS[0] = request.param != "http"
    return request.param


@pytest.fixture(scope="module")
def kept_store(kind, tmp_path_factory):
    """Open a store with the collection `photos`, which no test changes."""
    with PLACES[kind](tmp_path_factory.mktemp("store")) as address, open_store(address) as opened:
        opened.create("photos", CollectionSpec(DIM, index="flat", indexed=INDEXED)).upsert(items())
        yield opened
        for info in opened.list():
            opened.drop(info.name)


@pytest.fixture
def store(kept_store):
    """Return the same store; drop afterwards what a test created in it."""
    yield kept_store
    for info in kept_store.list():
        if info.name != "photos":
            kept_store.drop(info.name)


@pytest.fixture
def photos(kept_store):
    return kept_store.get("photos")


@pytest.fixture
def collection(store):
    """Create an empty collection."""
    return store.create("c", CollectionSpec(DIM, index="flat", indexed=("n", "label", "v")))


def with_names(store):
    """Add the collections `a` and `b`, each with an item that has the same name."""
    for name in "ab":
        store.create(name, CollectionSpec(2)).upsert([Item(name, np.ones(2))])
    return store


@pytest.fixture
def names(store):
    return with_names(store)


@pytest.fixture
def place(kind, tmp_path):
    """Return the address of a store that can be opened and closed."""
    if kind in SERVERS or kind == "http":
        pytest.skip("a server is not closed with the store")
    with PLACES[kind](tmp_path) as address:
        yield address


@pytest.fixture
def folder(tmp_path):
    """Open a store in a folder, for what only that promises."""
    with open_store(str(tmp_path / "only")) as opened:
        yield opened


@pytest.fixture
def folder_names(folder):
    return with_names(folder)
