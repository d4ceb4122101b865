"""What is kept of jobs: pages of it, marks, ids that grow, and what is forgotten."""

import time
from dataclasses import asdict, replace

import pytest
from job_worlds import until

from nnclr_hub.errors import DiskFull, JobNotFound
from nnclr_hub.store.records import Record
from serving.jobs.job import Job
from serving.jobs.job_store import JOB, MARK


def test_the_newest_come_first_page_by_page(world):
    world.work.let(100)
    jobs = [world.submit(str(i), ["work", "other"][i % 2]) for i in range(3)]
    for job in jobs:
        world.other.let(3)
        until(world.jobs, job.id, "done")
    found, cursor = world.jobs.list(2)
    assert [job.params["name"] for job in found] == ["2", "1"]
    found, cursor = world.jobs.list(2, cursor)
    assert ([job.params["name"] for job in found], cursor) == (["0"], None)
    assert [job.id for job in world.jobs.list(9, kind="other")[0]] == [jobs[1].id]
    assert world.jobs.list(9, state="failed") == ([], None)
    assert len(world.jobs.list(3, state="done")[0]) == 3


def test_an_unknown_job_is_not_found(world):
    with pytest.raises(JobNotFound):
        world.jobs.get("0" * 14)
    with pytest.raises(JobNotFound):
        world.jobs.cancel("nothing")


def test_old_ended_jobs_are_forgotten_and_no_other(make_world):
    world = make_world(keep=2)
    waiting = world.submit("running")
    until(world.jobs, waiting.id, "running")
    world.other.let(100)
    ended = [until(world.jobs, world.submit(name, "other").id, "done").id for name in "abcd"]
    assert [job.id for job in world.jobs.list(9)[0]] == [ended[3], ended[2], waiting.id]
    with pytest.raises(JobNotFound):
        world.jobs.get(ended[0])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_that_took_longer_than_many_others_is_not_forgotten_at_its_end(make_world, restarted):
    world = make_world(keep=2)
    slow = world.submit("slow")
    until(world.jobs, slow.id, "running")
    world.other.let(100)
    ended = [until(world.jobs, world.submit(name, "other").id, "done").id for name in "abc"]
    world.work.let(3)
    assert until(world.jobs, slow.id, "done").result == {"made": "slow"}
    if restarted:
        world.restart()
        ended.append(until(world.jobs, world.submit("d", "other").id, "done").id)
    assert {job.id for job in world.jobs.list(9)[0]} == {slow.id, ended[-1]}


def test_no_step_of_a_job_reads_what_other_jobs_came_to(make_world, monkeypatch):
    """Neither a submission with a mark, nor `latest`, the end or the forgetting of a job goes through the others."""
    world = make_world(keep=3)
    world.work.let(100)
    first = [until(world.jobs, world.submit(name).id, "done").id for name in "abc"]
    assert [job.result for job in world.jobs.list(9)[0]] == [None] * 3
    assert world.jobs.get(first[0]).result == {"made": "a"}
    assert not any("made" in str(record.content.get("result")) for record in world.store.records.list(JOB))
    world.restart()

    def all_of_them(*_):
        raise AssertionError

    monkeypatch.setattr(world.jobs._active.records, "newest_first", all_of_them)
    job = world.jobs.submit("work", {"name": "d"}, mark="m")
    assert until(world.jobs, job.id, "done").result == {"made": "d"}
    assert world.jobs.get("latest").id == job.id
    with pytest.raises(JobNotFound):
        world.jobs.get(first[0])


def test_a_job_ends_once_even_if_old_ones_cannot_be_forgotten(make_world, monkeypatch):
    world = make_world(keep=0)
    ledger = world.jobs._active.records
    ends = []
    note, prune = ledger.update, ledger.prune

    def noted(job, *commit):
        note(job, *commit)
        ends.extend([job.id] if job.has_ended else [])

    def full():
        raise DiskFull("The disk is full.")

    monkeypatch.setattr(ledger, "update", noted)
    monkeypatch.setattr(ledger, "prune", full)
    world.work.let(6)
    first = until(world.jobs, world.submit("a").id, "done")
    monkeypatch.setattr(ledger, "prune", prune)
    second = world.submit("b")
    while len(world.made()) < 2:
        time.sleep(0.005)
    while world.jobs.list(9)[0]:
        time.sleep(0.005)
    assert ends == [first.id, second.id]


def test_a_mark_is_of_one_job(world):
    job = world.jobs.submit("work", {"name": "a"}, mark="m")
    assert world.jobs.submit("work", {"name": "a"}, mark="m").id == job.id
    world.work.let(9)
    until(world.jobs, job.id, "done")
    assert world.jobs.submit("work", {"name": "a"}, mark="m").state == "done"
    assert world.jobs.submit("work", {"name": "a"}, mark="n").id != job.id
    assert world.jobs.submit("work", {"name": "a"}).id != job.id


def test_a_mark_is_forgotten_with_its_job(make_world):
    world = make_world(keep=1)
    world.work.let(100)
    for mark in "mn":
        until(world.jobs, world.jobs.submit("work", {"name": mark}, mark=mark).id, "done")
    assert [record.name for record in world.store.records.list(MARK)] == ["n"]


def test_jobs_that_hold_their_result_in_their_record_are_read(world):
    job = world.submit("a")
    world.work.let(3)
    done = until(world.jobs, job.id, "done")
    world.store.records.put(Record(JOB, job.id, asdict(done)))
    assert world.jobs.get(job.id) == done


def test_ids_grow_even_if_the_clock_goes_back(make_world, monkeypatch):
    world = make_world(waiting=9)
    ids = [world.submit("a").id]
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    ids += [world.submit("b").id, world.submit("c").id]
    world.restart()
    ids.append(world.submit("d", "other").id)
    assert ids == sorted(set(ids))


def test_a_job_is_read_by_versions_before_and_after():
    """Those before know of no notes, and those after of more than we do."""
    job = Job("1", "verify", {}, created=1.0)
    content, _ = job.written()
    assert "notes" not in content
    assert Job.read({**content, "of_a_later_version": 1}, None) == job
    noted = replace(job, notes={"added": 3})
    assert Job.read(*noted.written()) == noted
