"""Jobs on disk: pages, marks, increasing ids, and the deletion of old jobs."""

import time

import pytest
from job_worlds import until

from nnclr_hub.errors import DiskFull, JobNotFound
from serving.jobs import JOB, MARK, JobRecords


def test_old_ended_jobs_are_deleted_and_running_ones_kept(make_world):
    world = make_world(keep=2)
    waiting = world.submit("running")
    until(world.jobs, waiting.id, "running")
    world.other.let(100)
    ended = [until(world.jobs, world.submit(name, "other").id, "done").id for name in "abcd"]
    assert [job.id for job in world.jobs.list(9)[0]] == [ended[3], ended[2], waiting.id]
    with pytest.raises(JobNotFound):
        world.jobs.get(ended[0])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_long_job_is_not_deleted_when_it_ends(make_world, restarted):
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


def test_no_step_of_a_job_reads_the_other_jobs(make_world, monkeypatch):
    """Submission with a mark, `latest`, the end and the deletion of a job do not scan all jobs."""
    world = make_world(keep=3)
    world.work.let(100)
    first = [until(world.jobs, world.submit(name).id, "done").id for name in "abc"]
    assert [job.result for job in world.jobs.list(9)[0]] == [None] * 3
    assert world.jobs.get(first[0]).result == {"made": "a"}
    assert not any("made" in str(record.content.get("result")) for record in world.store.records.list(JOB))
    world.restart()

    def all_of_them(*_):
        raise AssertionError

    monkeypatch.setattr(JobRecords, "newest_first", all_of_them)
    job = world.jobs.submit("work", {"name": "d"}, mark="m")
    assert until(world.jobs, job.id, "done").result == {"made": "d"}
    assert world.jobs.get("latest").id == job.id
    with pytest.raises(JobNotFound):
        world.jobs.get(first[0])


def test_a_job_ends_once_even_if_old_ones_cannot_be_deleted(make_world, monkeypatch):
    world = make_world(keep=0)
    ends = []
    update = JobRecords.update

    def recorded(self, job, *commit):
        update(self, job, *commit)
        ends.extend([job.id] if job.has_ended else [])

    def full(self):
        raise DiskFull("disk full")

    monkeypatch.setattr(JobRecords, "update", recorded)
    world.work.let(6)
    with monkeypatch.context() as patch:
        patch.setattr(JobRecords, "prune", full)
        first = until(world.jobs, world.submit("a").id, "done")
        world.jobs.stop()  # waits for the pruning, which follows the end
    world.restart()
    second = world.submit("b")
    while len(world.made()) < 2:
        time.sleep(0.005)
    while world.jobs.list(9)[0]:
        time.sleep(0.005)
    assert ends == [first.id, second.id]


def test_a_mark_identifies_one_job_until_it_ends(world):
    job = world.jobs.submit("work", {"name": "a"}, mark="m")
    assert world.jobs.submit("work", {"name": "a"}, mark="m").id == job.id
    world.work.let(9)
    until(world.jobs, job.id, "done")
    assert world.jobs.submit("work", {"name": "a"}, mark="m").id != job.id
    assert world.jobs.submit("work", {"name": "a"}, mark="n").id != job.id
    assert world.jobs.submit("work", {"name": "a"}).id != job.id


def test_a_mark_is_deleted_with_its_job(make_world):
    world = make_world(keep=1)
    world.work.let(100)
    for mark in "mn":
        until(world.jobs, world.jobs.submit("work", {"name": mark}, mark=mark).id, "done")
    assert [record.name for record in world.store.records.list(MARK)] == ["n"]


def test_ids_increase_even_if_the_clock_is_set_back(make_world, monkeypatch):
    world = make_world(waiting=9)
    ids = [world.submit("a").id]
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    ids += [world.submit("b").id, world.submit("c").id]
    world.restart()
    ids.append(world.submit("d", "other").id)
    assert ids == sorted(set(ids))
