"""A store of each kind, for tests that hold for all of them."""

import numpy as np
import pytest
from contract import places
from contract.places import DIM, INDEXED, PARAMS, PLACES, items
from store.milvus_servers import SERVERS

from nnclr_hub import open_store
from nnclr_hub.store.base import CollectionSpec, Item

# What REST does not have, by the test that needs it.
NOT_OVER_HTTP = {
    "thumbnails are made by the server": """a_request_of_any_size_is_stored_whole the_last_item_of_an_id_wins
        items_come_back_as_they_were_written an_invalid_item_is_refused""",
    "the server decides which keys stay": "edits_are_merge_patches each_item_has_its_own_patch",
    "repairs need the disk of the server": "maintenance_changes_no_answer",
    "a cursor is opaque": "pages_cover_everything_once",
    "a URL is short": "filters_agree_with_a_literal",
    "metadata is JSON already": "metadata_is_what_the_standard_library_makes_of_it",
    "percentiles come with matches": "percentile pairs_are_sampled",
    "the server chooses the fingerprint, and what is compared": "the_store_decides vectors_of_another_encoder",
    "the limits are those of the server's store": "facets_count_the_values other_keys_can_be",
    "the log of changes of a folder is the server's": "only_a_folder_keeps_a_log",
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
