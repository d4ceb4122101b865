"""A store of each kind, for tests that hold for all of them."""

import numpy as np
import pytest
from contract.places import DIM, INDEXED, PARAMS, PLACES, items
from store.milvus_servers import SERVERS

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item


@pytest.fixture(scope="module", params=PARAMS)
def kind(request) -> str:
    if request.param != "folder":
        pytest.importorskip("pymilvus", reason="pymilvus is not installed")
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


@pytest.fixture
def names(store):
    """Add the collections `a` and `b`, each with an item that has the same name."""
    for name in "ab":
        store.create(name, CollectionSpec(2)).upsert([Item(name, np.ones(2))])
    return store


@pytest.fixture
def place(kind, tmp_path):
    """Return the address of a store that can be opened and closed."""
    if kind in SERVERS:
        pytest.skip("a server is not closed with the store")
    with PLACES[kind](tmp_path) as address:
        yield address


@pytest.fixture
def folder(tmp_path):
    """Open a store in a folder, for what only that promises."""
    with open_store(str(tmp_path / "only")) as opened:
        yield opened
