"""How a job is cancelled, whenever that is: it ends once, is cleaned up if it was at work, and is never begun again."""

import threading
from dataclasses import replace

from job_worlds import until

from serving.jobs import Kind
from serving.jobs.job_store import JobRecords


def test_a_waiting_job_is_cancelled_at_once_and_never_begun(world):
    first, second = world.submit("a"), world.submit("b")
    for _ in range(2):
        cancelled = world.jobs.cancel(second.id)
        assert (cancelled.state, cancelled.cancelling) == ("cancelled", False)
    world.work.let(3)
    until(world.jobs, first.id, "done")
    world.restart()
    assert world.jobs.get(second.id).state == "cancelled"
    assert world.work.begun == ["a"]
    assert world.work.cleaned == []


def test_a_running_job_ends_at_its_next_step_and_is_cleaned_up(world):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    assert world.jobs.cancel(job.id).cancelling
    ended = until(world.jobs, job.id, "cancelled")
    assert (ended.result, ended.cancelling) == (None, False)
    assert world.work.cleaned == ["a"]
    assert world.made() == []
    assert world.jobs.cancel(job.id).state == "cancelled"


def test_what_was_cancelled_is_never_begun_however_close_it_was(world, monkeypatch):
    """Cancelled when its thread has it in hand already, and is about to say that it runs."""
    at_hand, go = threading.Event(), threading.Event()
    performer = world.jobs._performer
    patiently = performer._patiently

    def held(step):
        at_hand.set()
        assert go.wait(60)
        return patiently(step)

    monkeypatch.setattr(performer, "_patiently", held)
    job = world.submit("a")
    assert at_hand.wait(60)
    assert world.jobs.cancel(job.id).state == "cancelled"
    world.work.let(9)
    go.set()
    until(world.jobs, world.submit("b").id, "done")
    assert world.jobs.get(job.id).state == "cancelled"
    assert (world.work.begun, world.made()) == (["b"], ["b"])


def test_a_job_is_cancelled_even_if_its_cleaning_breaks(world, monkeypatch, caplog):
    def breaks(bench, params):
        raise ZeroDivisionError

    monkeypatch.setitem(world.jobs._performer._kinds, "work", Kind(world.work.run, breaks))
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.jobs.cancel(job.id)
    until(world.jobs, job.id, "cancelled")
    assert "ZeroDivisionError" in caplog.text


def test_a_job_that_is_done_stays_done(world):
    job = world.submit("a")
    world.work.let(3)
    until(world.jobs, job.id, "done")
    assert world.jobs.cancel(job.id).state == "done"
    assert world.work.cleaned == []


def test_what_was_cancelled_but_not_yet_cleaned_up_is_so_at_the_next_start(world):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.jobs.stop()
    ledger = JobRecords(world.store.records, 9)
    left = ledger.get(job.id)
    assert left is not None
    ledger.update(replace(left, state="running", cancelling=True))
    world.jobs = world.new()
    world.jobs.start()
    until(world.jobs, job.id, "cancelled")
    assert world.work.cleaned == ["a"]
    assert world.work.begun == ["a"]


def test_a_job_that_was_begun_and_waits_again_is_cleaned_up_when_cancelled(world):
    first, second = world.submit("a"), world.submit("b")
    until(world.jobs, first.id, "running")
    world.restart()
    until(world.jobs, first.id, "running")
    world.jobs.cancel(second.id)
    world.jobs.cancel(first.id)
    until(world.jobs, first.id, "cancelled")
    assert world.work.cleaned == ["a"]
