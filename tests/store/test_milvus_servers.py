"""MilvusStore and real servers that are killed, stopped and started again: nothing acknowledged is lost."""

import itertools
import signal
import threading
import time

import numpy as np
import pytest
from store.milvus_servers import SERVERS

from nnclr_hub.errors import StoreUnreachable
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.milvus import client
from nnclr_hub.store.pages import pages

pytestmark = pytest.mark.scale
VECTORS = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)


def items(n):
    return [Item(f"i{i}", VECTORS[i], {"n": i}) for i in range(n)]


@pytest.fixture(params=list(SERVERS))
def server(request, tmp_path):
    with SERVERS[request.param](tmp_path) as server:
        yield server


def write_until_refused(collection, numbers, kept, gone):
    """Upserts, and deletes some; notes what was acknowledged."""
    for number in numbers:
        some = [f"i{number}-{i}" for i in range(20)]
        collection.upsert([Item(id, VECTORS[i], {"n": number}) for i, id in enumerate(some)])
        kept |= set(some)
        if number % 3 == 0:
            kept -= set(some[:5])  # neither, until it is acknowledged
            collection.delete(some[:5])
            gone |= set(some[:5])


def test_acknowledged_items_survive_a_killed_server(server):
    """SIGKILL in the middle of upserts and deletes, three times: every answer that came is kept."""
    kept, gone = set(), set()
    numbers = itertools.count()
    with open_store(server.uri) as store:
        store.create("c", CollectionSpec(4))
    for _ in range(3):
        with open_store(server.uri) as store:
            collection = store.get("c")
            killer = threading.Timer(0.7, server.kill)
            killer.start()
            with pytest.raises(StoreUnreachable):
                write_until_refused(collection, numbers, kept, gone)
            killer.join()
        server.start()
        with open_store(server.uri) as store:
            collection = store.get("c")
            assert {item.id for item in collection.get(sorted(kept))} == kept
            assert collection.get(sorted(gone)) == []
            listed = [item.id for page in pages(collection, with_vector=False) for item in page]
            assert collection.count() == len(listed) == len(set(listed))
            assert len(kept) > 20


def test_a_store_continues_after_a_restart_of_its_server(server):
    """The same objects, after one clear error; reads wait for a server that is just starting."""
    with open_store(server.uri) as store:
        collection = store.create("c", CollectionSpec(4))
        collection.upsert(items(30))
        server.kill()
        begun = time.monotonic()
        for refused in (lambda: collection.search(VECTORS[0]), lambda: collection.upsert(items(1)), store.list):
            with pytest.raises(StoreUnreachable):
                refused()
        assert time.monotonic() - begun < 60
        server.start()
        assert collection.count() == 30
        assert [match.id for match in collection.search(VECTORS[4], 1)] == ["i4"]
        assert collection.upsert(items(40)) > 0
        assert collection.count() == 40


def test_a_server_that_does_not_answer_is_given_up_in_time(server, monkeypatch):
    """It is stopped, not dead: the connection stands, and no answer comes."""
    monkeypatch.setattr(client, "READ_TIMEOUT", 2.0)
    with open_store(server.uri) as store:
        collection = store.create("c", CollectionSpec(4))
        collection.upsert(items(30))
        server.signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(StoreUnreachable):
                collection.search(VECTORS[0])
            assert time.monotonic() - begun < 30
        finally:
            server.signal(signal.SIGCONT)
        assert collection.count() == 30


def test_another_client_sees_what_was_written(server):
    """At once when it opens the store after the write; and deletes too."""
    with open_store(server.uri) as one:
        one.create("c", CollectionSpec(4)).upsert(items(30))
        one.get("c").delete(["i0", "i1"])
        with open_store(server.uri) as other:
            assert other.get("c").count() == 28
            assert other.get("c").get(["i0"]) == []
