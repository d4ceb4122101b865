"""The answers that are kept for an Idempotency-Key: how long, how many, and whose."""

from contextlib import closing

import pytest
from idempotent_world import World, run

from nnclr_hub.store.records import RECORDS, Records
from serving.idempotency import MAX_STORED
from serving.replies import LIFETIME_S


@pytest.fixture
def records(tmp_path):
    with closing(Records(tmp_path / RECORDS, read_only=False)) as opened:
        yield opened


@pytest.fixture
def world(records):
    return World(records)


def test_stored_responses_survive_a_restart(tmp_path):
    for replayed in (None, "true"):
        with closing(Records(tmp_path / RECORDS, read_only=False)) as records:
            world = World(records)
            answer = run(world.send())
            assert answer.headers.get("idempotency-replayed") == replayed
            assert answer.headers["x-number"] == "1"
            assert len(world.done) == (0 if replayed else 1)


def test_different_requests_have_different_ids(world):
    run(world.send("a"))
    run(world.send("b"))
    run(world.send("c", content=b"another"))
    run(world.send(None))
    assert len(set(world.marks)) == 4
    assert world.marks[3] == ""


def test_stored_responses_are_limited_in_number_and_bytes(records):
    world = World(records, most=3)
    for key in "abcd":
        run(world.send(key))
    assert len(records.list("reply")) == 3
    assert run(world.send("d")).headers["x-number"] == "4"
    assert run(world.send("a")).headers["x-number"] == "5"  # forgotten
    world = World(records, most_bytes=5000)  # another process counts the stored ones
    world.answer = b"x" * 2000
    for key in "efg":
        run(world.send(key))
    assert sum(one.content["size"] for one in records.list("reply")) <= 5000
    assert run(world.send("g")).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("limits", [{"most": 4}, {"most_bytes": 9000}])
def test_a_caller_cannot_push_out_the_responses_of_another(records, limits):
    for restarted in (False, True):
        world = World(records, **limits)
        world.answer = b"x" * 2000
        if not restarted:
            run(world.send("mine", authorization="Bearer one"))
        for number in range(9):
            run(world.send(f"{restarted}{number}", authorization="Bearer two"))
        again = run(world.send("mine", authorization="Bearer one"))
        assert again.headers.get("idempotency-replayed") == "true"
    assert len(records.list("reply")) == 4


def test_a_huge_response_is_sent_but_not_stored(world):
    world.answer = b"x" * (MAX_STORED + 1)
    for number in ("1", "2"):
        answer = run(world.send())
        assert (answer.headers["x-number"], len(answer.content)) == (number, MAX_STORED + 1)


def test_a_key_expires_after_a_day(world, monkeypatch):
    run(world.send())
    import time

    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + LIFETIME_S + 1)
    assert run(world.send(content=b"another")).headers["x-number"] == "2"


def test_a_response_that_cannot_be_stored_is_still_sent(world, records, monkeypatch):
    from nnclr_hub.errors import DiskFull

    def full(*_):
        raise DiskFull("The disk is full.")

    monkeypatch.setattr(records, "put", full)
    assert run(world.send()).status_code == 200
    assert run(world.send()).headers["x-number"] == "2"
