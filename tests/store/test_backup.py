"""Backups against a dict: what is restored is what was stored at that commit, whatever happens at the same time."""

import random
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from store.backups import BACKUP, at, contents, restored
from store.crash.small import environment, open_small_store
from store.exhaustive import DIM, vectors

from nnclr_hub.errors import CollectionNotFound, InvalidRequest, NNCLRHubError, StoreCorrupt
from nnclr_hub.store import open_store
from nnclr_hub.store.backup import back_up, restore, verify_backups
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.records import Record

VECTORS = np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_every_commit_is_restored_exactly_or_refused(seed, tmp_path):
    destination = f"memory://{tmp_path.name}"
    rng = random.Random(seed)
    states: dict[int, dict] = {}  # by change
    saved, times = [], {}
    with open_small_store(tmp_path / "store") as store:
        collection = store.create("c", CollectionSpec(DIM, "l2"))
        store.create("other", CollectionSpec(2)).upsert([Item("one", np.ones(2))])
        store.alias("current", "c")
        for step in range(36):
            ids = [f"i{n}" for n in rng.sample(range(80), rng.choice((1, 2, 5)))]
            if rng.random() < 0.2:
                collection.delete(ids)
            elif rng.random() < 0.2:
                collection.update_metadata({"edited": step}, ids=ids)
            else:
                some = vectors(len(ids), rng.randrange(10**6))
                thumbnail = rng.choice((None, b"jpeg"))
                collection.upsert([Item(id, v, {"step": step}, thumbnail) for id, v in zip(ids, some, strict=True)])
            states[collection.info().durable_seq] = contents(collection)
            if rng.random() < 0.2:
                store.records.put(Record("probe", "p", {"step": step}))
                report = back_up(store, destination)
                assert report.together
                saved.append(collection.info().durable_seq)
                times[report.id] = contents(collection)
            if rng.random() < 0.1:
                collection.compact()
                collection.snapshot()
    assert len(saved) > 3
    assert set(verify_backups(destination).values()) == {None}
    exact = 0
    for number, seq in enumerate([*saved[::2], *(seq for seq in states if saved[0] < seq < saved[-1])][:14]):
        try:
            found = restored(destination, tmp_path / f"r{number}", at=seq, collection="current")
        except InvalidRequest:
            assert seq not in saved
            assert not (tmp_path / f"r{number}").exists()
            continue
        assert found == {"c": states[seq]}, seq
        exact += seq not in saved
    assert exact > 2, "nothing between two backups was restored"
    for number, (id, held) in enumerate(list(times.items())[:3]):
        found = restored(destination, tmp_path / f"t{number}", at=at(id))
        assert (found["c"], len(found["other"])) == (held, 1)
    restore(destination, tmp_path / "last")
    with open_store(str(tmp_path / "last")) as store:
        assert store.aliases() == {"current": "c"}
        assert store.records.get("probe", "p") is not None
        assert store.get("c").verify().ok
        store.get("c").upsert([Item("new", vectors(1)[0])])
        assert back_up(store, destination).written > 0  # a restored store continues with backups
    assert set(verify_backups(destination).values()) == {None}


def test_a_backup_of_a_busy_store_tears_no_write(tmp_path):
    """Two items are always written together, in two collections at once."""
    stop = threading.Event()
    with open_small_store(tmp_path / "store") as store:
        both = [store.create(name, CollectionSpec(DIM)) for name in "ab"]
        for collection in both:
            collection.upsert(
                [Item(id, vectors(1)[0], {"version": 0}) for id in ("first", *map(str, range(50)), "last")]
            )

        def write(collection) -> None:
            version = 0
            while not stop.is_set():
                version += 1
                collection.upsert([Item(id, vectors(1)[0], {"version": version}) for id in ("first", "last")])

        threads = [threading.Thread(target=write, args=[collection]) for collection in both]
        for thread in threads:
            thread.start()
        try:
            with open_small_store(tmp_path / "store", read_only=True) as reader:  # as another process does
                for _ in range(5):
                    back_up(reader, tmp_path / "backups")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    versions = []
    for number, (id, problem) in enumerate(verify_backups(tmp_path / "backups").items()):
        assert problem is None
        for held in restored(tmp_path / "backups", tmp_path / str(number), at=at(id)).values():
            assert len(held) == 52
            assert held["first"][1] == held["last"][1]
            versions.append(held["last"][1]["version"])
    assert versions[-1] > versions[0]


def test_later_backups_copy_only_what_is_new(destination, tmp_path):
    with open_store(str(tmp_path / "store")) as store:
        collection = store.create("c", CollectionSpec(64))
        collection.upsert([Item(f"i{n}", v) for n, v in enumerate(VECTORS)])
        first = back_up(store, destination)
        assert first.size == first.written > 2000 * 64 * 4
        assert back_up(store, destination).written == 0
        collection.upsert([Item("new", -VECTORS[0])])
        third = back_up(store, destination)
        assert 0 < third.written < first.written / 10
        collection.delete([f"i{n}" for n in range(1500)])  # most of the first piece is not needed any more
        assert back_up(store, destination).size < 0.6 * first.size
    assert set(verify_backups(destination).values()) == {None}


@pytest.mark.parametrize("step", ["backup.piece", "backup.piece:3", "backup.pieces", "backup.done"])
def test_a_backup_that_is_killed_leaves_the_older_ones_usable(step, tmp_path):
    to = tmp_path / "backups"
    with open_small_store(tmp_path / "store") as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item(f"i{n}", v) for n, v in enumerate(vectors(30))])
        before = contents(collection)
        back_up(store, to)
        collection.upsert([Item(f"j{n}", v) for n, v in enumerate(vectors(30, 1))])
        collection.delete(["i3"])
        after = contents(collection)
    command = [sys.executable, "-c", BACKUP, str(tmp_path / "store"), str(to)]
    assert subprocess.run(command, env=environment(NNCLR_FAILPOINT=step), timeout=60).returncode == -9
    problems = verify_backups(to)
    assert set(problems.values()) == {None}
    assert restored(to, tmp_path / "r") == {"c": after if step == "backup.done" else before}
    with open_small_store(tmp_path / "store") as store:
        back_up(store, to)
    assert len(verify_backups(to)) == len(problems) + 1
    assert restored(to, tmp_path / "s") == {"c": after}


def test_damage_of_a_backup_is_reported_and_restores_nothing(tmp_path):
    to, rng = tmp_path / "backups", random.Random(0)
    with open_store(str(tmp_path / "store")) as store:
        store.create("c", CollectionSpec(DIM)).upsert([Item(f"i{n}", v) for n, v in enumerate(vectors(30))])
        store.records.put(Record("probe", "p", {}))
        back_up(store, to)
    files = [path for path in to.rglob("*") if path.is_file() and path.name != "lock"]
    assert len(files) == 4  # rows, live rows, records, description
    for number, file in enumerate(files):
        data = file.read_bytes()
        bit = rng.randrange(8 * len(data))
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        for changed in (bytes(damaged), data[:-1], None):
            file.unlink(missing_ok=True)
            if changed is not None:
                file.write_bytes(changed)
            with pytest.raises((StoreCorrupt, InvalidRequest)):
                restore(to, tmp_path / f"r{number}")
            assert not (tmp_path / f"r{number}").exists()
            if file.suffix != ".json" or changed is not None:
                assert None not in verify_backups(to).values(), file
            file.write_bytes(data)
    assert set(verify_backups(to).values()) == {None}


# ---- old backups are removed


# ---- many and large backups


def test_impossible_requests_are_refused(tmp_path):
    to = tmp_path / "backups"
    with open_store(str(tmp_path / "store")) as store:
        for name in "ab":
            store.create(name, CollectionSpec(DIM)).upsert([Item("i", vectors(1)[0])])
        back_up(store, to)
    past, future = datetime(2020, 1, 1).astimezone(), datetime.now().astimezone() + timedelta(hours=1)
    for options in (
        {"at": 1},
        {"at": 2, "collection": "a"},
        {"at": 0, "collection": "a"},
        {"at": past},
        {"at": future},
    ):
        with pytest.raises(InvalidRequest):
            restore(to, tmp_path / "r", **options)
    with pytest.raises(CollectionNotFound):
        restore(to, tmp_path / "r", collection="x")
    with pytest.raises(InvalidRequest):
        restore(to, tmp_path / "store")
    for wrong in ("", "x"):
        with pytest.raises(NNCLRHubError):
            verify_backups(tmp_path / "nothing", id=wrong or None)
    with pytest.raises(NNCLRHubError):
        restore("nosuch://bucket/x", tmp_path / "r")


@pytest.fixture
def three_backups(tmp_path):
    """Ids of backups with 5, 10 and 15 items, in tmp_path / "backups"."""
    with open_small_store(tmp_path / "store") as store:
        collection, ids = store.create("c", CollectionSpec(DIM)), []
        for n in range(3):
            collection.upsert([Item(f"{n}-{i}", vector) for i, vector in enumerate(vectors(5, n))])
            ids.append(back_up(store, tmp_path / "backups").id)
    return ids


def test_stores_do_not_share_a_destination(tmp_path):
    destination = tmp_path / "backups"
    for name in ("one", "other"):
        with open_small_store(tmp_path / name) as store:
            store.create("c", CollectionSpec(2)).upsert([Item(name, np.ones(2))])
            if name == "one":
                back_up(store, destination)
            else:
                with pytest.raises(InvalidRequest):
                    back_up(store, destination)
    restore(destination, tmp_path / "restored")  # takes the place of the first one
    with open_small_store(tmp_path / "restored") as store:
        back_up(store, destination)
    assert len(verify_backups(destination)) == 2


def test_backups_may_be_removed_while_they_are_verified(tmp_path):
    destination = tmp_path / "backups"
    with open_small_store(tmp_path / "store") as store:
        collection = store.create("c", CollectionSpec(2))
        for name in "ab":
            collection.upsert([Item(name, np.ones(2))])
            first = back_up(store, destination)

        def remove(done: int, total: int) -> None:
            if done == total and len(list(destination.glob("backups/*"))) > 1:
                collection.upsert([Item("c", np.ones(2))])
                back_up(store, destination, keep=1)

        assert verify_backups(destination, progress=remove) == {}
        assert first.id not in verify_backups(destination)


def test_a_damaged_description_blocks_only_its_own_backup(three_backups, tmp_path):
    first, second, third = three_backups
    description = tmp_path / "backups" / "backups" / f"{third}.json"
    description.write_bytes(description.read_bytes()[:100])
    for when in (None, third, at(third)):
        with pytest.raises(StoreCorrupt, match=second):
            restore(tmp_path / "backups", tmp_path / "new", at=when)
    for when, items in ((first, 5), (second, 10), (5, 5), (10, 10)):
        found = restored(tmp_path / "backups", tmp_path / f"r{when}", at=when)
        assert len(found["c"]) == items
    with pytest.raises(InvalidRequest):
        restore(tmp_path / "backups", tmp_path / "new", at="20200101T000000.000000Z")


def test_the_state_before_a_drop_is_refused_if_no_backup_has_it(tmp_path):
    with open_small_store(tmp_path / "store") as store:
        collection = store.create("c", CollectionSpec(DIM))
        collection.upsert([Item("a", vectors(1)[0])])
        store.create("other", CollectionSpec(DIM)).upsert([Item("o", vectors(1)[0])])
        saved = back_up(store, tmp_path / "backups")
        collection.upsert([Item("b", vectors(1)[0])])
        between = datetime.now(UTC)
        store.drop("c")
        back_up(store, tmp_path / "backups")
    with pytest.raises(InvalidRequest, match=saved.id):
        restore(tmp_path / "backups", tmp_path / "new", at=between)
    assert restored(tmp_path / "backups", tmp_path / "one", at=between, collection="other").keys() == {"other"}
    assert restored(tmp_path / "backups", tmp_path / "two", at=saved.id)["c"].keys() == {"a"}
