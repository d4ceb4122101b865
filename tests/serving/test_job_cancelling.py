"""Cancellation of jobs at any time: a job ends once, is cleaned up if it ran, and never starts again."""

import threading
from dataclasses import replace

from job_worlds import until

from serving.jobs import JobRecords, Jobs


def test_a_waiting_job_is_cancelled_at_once_and_never_starts(world):
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


def test_a_running_job_is_cancelled_at_its_next_step_and_cleaned_up(world):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    assert world.jobs.cancel(job.id).cancelling
    ended = until(world.jobs, job.id, "cancelled")
    assert (ended.result, ended.cancelling) == (None, False)
    assert world.work.cleaned == ["a"]
    assert world.made() == []
    assert world.jobs.cancel(job.id).state == "cancelled"


def test_a_job_cancelled_just_before_it_starts_never_starts(world, monkeypatch):
    """Its thread has taken it from the queue, and has not recorded that it runs."""
    taken, go = threading.Event(), threading.Event()
    start = Jobs._begin

    def delayed(self, active):
        taken.set()
        assert go.wait(60)
        return start(self, active)

    monkeypatch.setattr(Jobs, "_begin", delayed)
    job = world.submit("a")
    assert taken.wait(60)
    assert world.jobs.cancel(job.id).state == "cancelled"
    world.work.let(9)
    go.set()
    until(world.jobs, world.submit("b").id, "done")
    assert world.jobs.get(job.id).state == "cancelled"
    assert (world.work.begun, world.made()) == (["b"], ["b"])


def test_a_finished_job_cannot_be_cancelled(world):
    job = world.submit("a")
    world.work.let(3)
    until(world.jobs, job.id, "done")
    assert world.jobs.cancel(job.id).state == "done"
    assert world.work.cleaned == []


def test_a_cancelled_job_is_cleaned_up_at_the_next_start_if_the_server_crashed(world):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.jobs.stop()
    records = JobRecords(world.store.records, 9)
    left = records.get(job.id)
    assert left is not None
    records.update(replace(left, state="running", cancelling=True))
    world.jobs = world.new()
    world.jobs.start()
    until(world.jobs, job.id, "cancelled")
    assert world.work.cleaned == ["a"]
    assert world.work.begun == ["a"]


def test_an_interrupted_job_that_waits_again_is_cleaned_up_when_cancelled(world):
    first, second = world.submit("a"), world.submit("b")
    until(world.jobs, first.id, "running")
    world.restart()
    until(world.jobs, first.id, "running")
    world.jobs.cancel(second.id)
    world.jobs.cancel(first.id)
    until(world.jobs, first.id, "cancelled")
    assert world.work.cleaned == ["a"]
