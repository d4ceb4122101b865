"""The log of changes: applied to an empty dict, it gives the collection; no request is torn."""

import random
import threading

import pytest
from store.crash.small import SMALL, open_small_store
from store.exhaustive import DIM, vectors

from nnclr_hub.errors import ChangesUnavailable, InvalidRequest
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.settings import StoreSettings


@pytest.mark.parametrize("limit", [1, 7, 10_000])
def test_a_follower_that_applies_the_changes_has_the_ids_of_the_collection(limit, tmp_path):
    rng, held = random.Random(0), {}
    with open_small_store(tmp_path, settings=StoreSettings()) as store:
        collection = store.create("c", CollectionSpec(DIM))
        since = 0
        for step in range(40):
            ids = [f"i{n}" for n in rng.sample(range(30), rng.choice((1, 3, 12)))]
            if rng.random() < 0.3:
                collection.delete(ids)
            else:
                collection.upsert([Item(id, v, {"n": step}) for id, v in zip(ids, vectors(len(ids)), strict=True)])
            if rng.random() < 0.1:
                collection.compact()
                collection.snapshot()
            if rng.random() < 0.5 or step == 39:
                while (page := collection.changes(since, limit)).changes or page.next > since:
                    assert since < page.next <= page.last == collection.info().durable_seq
                    for change in page.changes:
                        assert change.seq <= change.commit
                        if change.op == "upsert":
                            held[change.id] = collection.get([change.id])
                        else:
                            held.pop(change.id, None)
                    assert limit < 24 or page.next == page.changes[-1].commit  # whole commits only
                    since = page.next
                assert held.keys() == {item.id for item in collection.scroll(limit=100).items}
        expected = {id: [(one.metadata, one.vector.tobytes()) for one in collection.get([id])] for id in held}
        assert {id: [(one.metadata, one.vector.tobytes()) for one in items] for id, items in held.items()} == expected
        times = [change.at for change in collection.changes(0, 10_000).changes]
        assert times == sorted(times)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_follower_waits_for_the_next_change(read_only, tmp_path):
    with open_small_store(tmp_path) as store:
        collection = store.create("c", CollectionSpec(DIM))
        seq = collection.upsert([Item("a", vectors(1)[0])])
        with open_small_store(tmp_path, read_only=True) as reader:
            follower = (reader if read_only else store).get("c")
            assert follower.changes(seq, wait=0.05).changes == []
            writer = threading.Timer(0.2, collection.upsert, [[Item("b", vectors(1)[0])]])
            writer.start()
            (change,) = follower.changes(seq, wait=60).changes
            writer.join()
    assert (change.op, change.id, change.seq) == ("upsert", "b", seq + 1)


def test_a_log_that_was_trimmed_says_so(tmp_path):
    with open_small_store(tmp_path) as store:
        collection = store.create("c", CollectionSpec(DIM))
        for n in range(3 * SMALL.kept_changes):
            collection.upsert([Item(f"i{n}", vectors(1, n)[0])])
        for _ in range(2):
            collection.snapshot()
        for since in (0, 5, 10**9):
            with pytest.raises(ChangesUnavailable):
                collection.changes(since)
        page = collection.changes(page_start := 2 * SMALL.kept_changes)
        assert [change.id for change in page.changes] == [f"i{n}" for n in range(page_start, 3 * SMALL.kept_changes)]
        for wrong in ({"since": -1}, {"since": True}, {"limit": 0}, {"limit": 10_001}):
            with pytest.raises(InvalidRequest):
                collection.changes(**wrong)


def test_a_follower_notices_that_the_collection_was_created_again(tmp_path):
    with open_small_store(tmp_path) as store:
        for n in range(2):
            collection = store.create("c", CollectionSpec(DIM))
            for m in range(n + 1):
                collection.upsert([Item(f"{n}-{m}", vectors(1)[0])])
            if n == 0:
                page = collection.changes()
                assert collection.changes(page.next, log=page.log).log == page.log
                store.drop("c")
        with pytest.raises(ChangesUnavailable):
            collection.changes(page.next, log=page.log)
        assert [one.id for one in collection.changes(0, log=collection.changes().log).changes] == ["1-0", "1-1"]
