"""Jobs: the queue, progress, results, cancellation, and what remains of them after a shutdown or a crash."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import waiting
from job_worlds import WorkRequest, until

from nnclr_hub.errors import DiskFull, JobNotFound, NotReady, StoreError
from nnclr_hub.store import open_store
from nnclr_hub.workbench import staging
from nnclr_hub.workbench.tasks import Task
from serving.jobs import HIDDEN, JOB, JobRecords
from serving.telemetry import Json, Text

# ---- jobs: the queue, progress, results, errors, and the log without private data


@pytest.fixture
def lines(caplog):
    """lines(formatter) -> the log lines of jobs so far."""
    caplog.set_level(logging.INFO, "nnclr_hub.jobs")
    return lambda formatter: [formatter.format(one) for one in caplog.records if one.name == "nnclr_hub.jobs"]


def count(world, name: str, **labels: str) -> float:
    return world.metrics.registry.get_sample_value(name, labels)


def test_a_job_reports_its_progress_and_result(world, lines):
    job = world.submit("a secret name", steps=4)
    assert (job.state, job.done, job.total) == ("queued", 0, 0)
    world.work.let(2)
    while world.jobs.get(job.id).done < 2:
        time.sleep(0.005)
    running = world.jobs.get(job.id)
    assert (running.state, running.done, running.total, running.phase) == ("running", 2, 4, "Stepping")
    assert 2 / running.rate <= running.eta_s <= 2 / running.rate  # the rate falls until the next step
    assert world.made() == []
    world.work.let(2)
    done = until(world.jobs, job.id, "done")
    assert (done.done, done.total, done.result, done.error) == (4, 4, {"made": "a secret name"}, None)
    assert job.created <= done.started <= done.ended
    assert (done.eta_s, done.phase) == (None, "")
    assert done.changes > running.changes > job.changes
    assert world.made() == ["a secret name"]
    assert count(world, "nnclr_jobs_total", kind="work", outcome="done") == 1
    assert count(world, "nnclr_jobs_active") == 0
    start, end = (json.loads(line) for line in lines(Json()))
    assert (start["message"], start["level"], start["job"]) == ("work job started", "info", job.id)
    assert (end["message"], end["kind"], end["done"]) == ("work job done", "work", 4)
    assert end["s"] == pytest.approx(done.ended - done.started, abs=0.001)
    assert lines(Text())[1].endswith(f"info    work job done job={job.id} s={end['s']} done=4")
    assert "secret" not in "".join(lines(Json()))


def test_a_job_waits_for_its_own_kind_only(world):
    first, second, other = world.submit("a"), world.submit("b"), world.submit("c", "other")
    until(world.jobs, first.id, "running")
    until(world.jobs, other.id, "running")
    assert world.jobs.get(second.id).state == "queued"
    world.work.let(6)
    until(world.jobs, second.id, "done")
    assert world.work.begun == ["a", "b"]


def test_a_failed_job_has_an_error_without_paths_or_internals(world, caplog):
    world.work.let(9)
    job = until(world.jobs, world.submit("a", fails=True).id, "failed")
    assert job.error == {"status": 422, "code": "invalid_request", "detail": "No such thing in job_worlds.py."}
    job = until(world.jobs, world.submit("b", breaks=True).id, "failed")
    assert (job.error["status"], job.error["code"]) == (500, "internal")
    assert "ZeroDivision" not in str(job.error)
    assert "ZeroDivisionError" in caplog.text
    assert count(world, "nnclr_jobs_total", kind="work", outcome="failed") == 2
    until(world.jobs, world.submit("c").id, "done")
    assert world.made() == ["c"]


def test_hidden_parameters_are_kept_until_the_job_ends_and_never_shown(world):
    job = world.jobs.submit("work", {"name": "a"}, {"secret": "a path"})
    assert json.loads(world.store.records.get(HIDDEN, job.id).data) == {"secret": "a path"}
    world.work.let(3)
    done = until(world.jobs, job.id, "done")
    assert (world.work.secrets, done.params) == (["a path"], {"name": "a"})
    assert world.store.records.get(HIDDEN, job.id) is None


GROUPS = {"found": 300, "groups": [{"ids": [f"item-{i}"]} for i in range(300)], "few": [1, 2]}
LARGE = {"few": [{"ids": "x" * 900}] * 3, "many": [[i, 0] for i in range(40)], "errors": [{"name": "m\udcfc.png"}]}


@pytest.mark.parametrize(
    ("most", "whole", "cut", "kept"),
    [
        (1000, GROUPS, "groups", {"found": 300, "few": [1, 2]}),
        # by bytes, not by entries; and a name of a file may hold a byte that is not UTF-8
        (2000, LARGE, "few", {"many": LARGE["many"], "errors": [{"name": "m?.png"}]}),
    ],
)
def test_a_result_that_is_too_long_is_cut_and_says_what_is_missing(make_world, most, whole, cut, kept):
    world = make_world(most=most)
    world.jobs.tasks["work"] = Task("work", WorkRequest, "/x", False, lambda *given: whole)
    job = until(world.jobs, world.submit("a").id, "done")
    assert len(job.data) <= most
    assert list(job.result) == list(whole)
    assert job.result == {cut: whole[cut][: len(job.result[cut])], **kept}
    left_out = len(whole[cut]) - len(job.result[cut])
    assert job.truncated.startswith(f"{left_out} of the {len(whole[cut])} entries of `{cut}` are left out")
    world.restart()
    assert world.jobs.get(job.id) == job


# ---- jobs on disk: pages, marks, increasing ids, and the deletion of old jobs


@pytest.mark.parametrize("restarted", [False, True])
def test_old_jobs_are_deleted_and_a_long_one_is_not_deleted_when_it_ends(make_world, restarted):
    world = make_world(keep=2)
    slow = world.submit("slow")
    until(world.jobs, slow.id, "running")
    world.other.let(100)
    ended = [until(world.jobs, world.submit(name, "other").id, "done").id for name in "abc"]
    assert [job.id for job in world.jobs.list(9)[0]] == [ended[2], ended[1], slow.id]  # it still runs
    world.work.let(3)
    assert until(world.jobs, slow.id, "done").result == {"made": "slow"}
    if restarted:
        world.restart()
        ended.append(until(world.jobs, world.submit("d", "other").id, "done").id)
    assert {job.id for job in world.jobs.list(9)[0]} == {slow.id, ended[-1]}
    with pytest.raises(JobNotFound):
        world.jobs.get(ended[0])


def test_a_mark_of_a_running_job_is_kept_when_an_older_job_of_the_request_is_deleted(make_world):
    world = make_world(keep=1)
    world.other.let(3)
    first = world.jobs.submit("other", {"name": "a"}, mark="m")
    until(world.jobs, first.id, "done")
    second = world.jobs.submit("other", {"name": "a"}, mark="m")
    assert second.id != first.id
    world.work.let(100)
    for name in "bc":  # the first job is deleted
        until(world.jobs, world.submit(name).id, "done")
    with pytest.raises(JobNotFound):
        world.jobs.get(first.id)
    assert world.jobs.submit("other", {"name": "a"}, mark="m").id == second.id
    world.other.let(9)


def test_ids_increase_even_if_the_clock_is_set_back(make_world, monkeypatch):
    world = make_world(waiting=9)
    ids = [world.submit("a").id]
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    ids += [world.submit("b").id, world.submit("c").id]
    world.restart()
    ids.append(world.submit("d", "other").id)
    assert ids == sorted(set(ids))


# ---- cancellation of jobs at any time: a job ends once, is cleaned up if it ran, and never starts again


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


def test_a_job_cancelled_just_before_it_starts_never_starts(world):
    """Whichever thread is first: the job starts and is cancelled at its next step, or it never starts."""
    for number in range(60):
        job = world.submit(str(number))
        time.sleep(number % 20 / 20_000)
        at_once = world.jobs.cancel(job.id).state == "cancelled"
        until(world.jobs, job.id, "cancelled")
        assert not at_once or str(number) not in world.work.begun + world.work.cleaned
    assert set(world.work.begun) <= set(world.work.cleaned)


def test_a_running_job_is_cancelled_at_its_next_step_and_cleaned_up(world):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    assert world.jobs.cancel(job.id).cancelling
    ended = until(world.jobs, job.id, "cancelled")
    assert (ended.result, ended.cancelling) == (None, False)
    assert world.work.cleaned == ["a"]
    assert world.made() == []
    assert world.jobs.cancel(job.id).state == "cancelled"


def crashed(world, **left: object):
    """Restart after a crash in a job, which leaves its record with these values; return the job."""
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.jobs.stop()
    records = JobRecords(world.store.records, 9)
    stored = records.get(job.id)
    assert stored is not None
    records.update(replace(stored, state="running", **left))
    records.add(replace(stored, id=records.new_id(), kind="of the future"), {})
    world.jobs = world.new()
    world.jobs.start()
    return job


def test_a_cancelled_job_is_cleaned_up_at_the_next_start_if_the_server_crashed(world):
    job = crashed(world, cancelling=True)
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


# ---- jobs when the server shuts down, crashes or cannot write: no job is lost, and none is done twice


def test_jobs_interrupted_by_a_shutdown_run_again_in_order(world, lines):
    running, waiting = world.submit("a"), world.submit("b")
    until(world.jobs, running.id, "running")
    world.jobs.stop()
    with pytest.raises(NotReady):
        world.submit("c")
    stored = [JobRecords(world.store.records, 9).get(job.id) for job in (running, waiting)]
    assert [(job.state, job.attempts) for job in stored if job] == [("queued", 0), ("queued", 0)]
    world.jobs = world.new()
    with pytest.raises(NotReady):
        world.jobs.get(running.id)
    world.jobs.start()
    world.work.let(6)
    until(world.jobs, waiting.id, "done")
    assert world.work.begun == ["a", "a", "b"]
    assert world.work.states == [{}, {"begun": 1}, {}]
    assert world.made() == ["a", "b"]
    assert world.work.cleaned == []
    messages = [json.loads(line)["message"].split()[2] for line in lines(Json())]
    assert messages == ["started", "interrupted", "started", "done", "started", "done"]


def test_a_job_that_crashed_the_server_three_times_fails(world):
    job = crashed(world, attempts=3)
    failed = world.jobs.get(job.id)
    assert (failed.state, failed.error["code"]) == ("failed", "interrupted")
    assert world.jobs.list(1)[0][0].error["code"] == "interrupted"
    assert world.work.begun == ["a"]


def test_a_full_disk_delays_the_end_of_a_job_and_loses_nothing(world, monkeypatch):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    monkeypatch.setattr("serving.jobs.RETRY_S", 0.01)
    refused = threading.Event()
    put = world.store.records.put

    def full(*records):
        refused.set()
        raise DiskFull("disk full")

    monkeypatch.setattr(world.store.records, "put", full)
    world.work.let(3)
    assert refused.wait(60)
    assert world.jobs.get(job.id).state == "running"
    monkeypatch.setattr(world.store.records, "put", put)
    assert until(world.jobs, job.id, "done").result == {"made": "a"}
    assert world.made() == ["a"]


def test_a_job_whose_start_cannot_be_written_fails(world, monkeypatch):
    update = JobRecords.update

    def refuse(self, job, *commit):
        if job.state == "running":
            raise StoreError("disk error")
        update(self, job, *commit)

    monkeypatch.setattr(JobRecords, "update", refuse)
    job = until(world.jobs, world.submit("a").id, "failed")
    assert "disk error" in job.error["detail"]
    monkeypatch.undo()
    world.work.let(3)
    until(world.jobs, world.submit("b").id, "done")


KILLS, TOTAL = 2, 60
SERVER = """
import sys, time
from pathlib import Path
import serving.jobs
from job_worlds import World

serving.jobs.MAX_ATTEMPTS = 1000
world = World(Path(sys.argv[1]), waiting=10000, keep=10000)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    print("begin", number, flush=True)
    world.submit(str(number), ("work", "other")[number % 2])
    print("done", number, flush=True)
    for work in (world.work, world.other):
        work.let(2)  # of three steps, so that many jobs wait and one is inside of its steps
    time.sleep(0.003)
while any(not job.has_ended for job in world.jobs.list(100000)[0]):
    for work in (world.work, world.other):
        work.let(1)
    time.sleep(0.003)
print("idle", flush=True)
sys.stdin.read()
"""


def test_kills_neither_lose_nor_repeat_a_job(tmp_path):
    """After kill -9 at any time, each acknowledged job is done exactly once in the end."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])}
    heard: dict[str, set[int]] = {"begin": set(), "done": set()}
    for kills in range(KILLS + 1):
        first = max(heard["begin"], default=-1) + 1
        command = [sys.executable, "-c", SERVER, str(tmp_path / "store"), str(first), str(TOTAL)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline()]
            if kills < KILLS:
                time.sleep(0.1 + 0.1 * kills)
            else:
                while lines[-1] != "idle\n":
                    assert lines[-1], "the server crashed"
                    lines.append(child.stdout.readline())
            child.kill()
            lines += child.stdout
        for word, number in (line.split() for line in lines if line != "idle\n"):
            heard[word].add(int(number))
    with open_store(str(tmp_path / "store")) as store:
        made = {int(record.name): record.content["times"] for record in store.records.list("made")}
        states = {record.content["state"] for record in store.records.list(JOB)}
    assert states == {"done"}
    assert heard["done"] <= made.keys() <= heard["begin"]
    assert set(made.values()) == {1}


def test_uploads_are_renewed_when_their_job_is_written_and_at_each_start_and_deleted_at_its_end(world, monkeypatch):
    """They are not renewed before: uploads without a job must expire."""
    folders = [staging.folder_of(letter * 32) for letter in "abc"]

    def age() -> list[bool]:
        """Return which of the uploads were renewed, and make them all old."""
        renewed = [folder.stat().st_mtime > 0 for folder in folders]
        for folder in folders:
            os.utime(folder, (0, 0))
        return renewed

    def full(*arguments):
        raise DiskFull("disk full")

    for folder in folders:
        staging.partial_file(folder.name).write_bytes(b"zip")
        staging.complete(folder.name, "photos.zip")
    age()
    for folder in folders[:2]:
        world.jobs.submit("work", {"name": folder.name[0]}, {"upload": folder.name})
    assert age() == [True, True, False]
    with monkeypatch.context() as patch:
        patch.setattr(JobRecords, "add", full)
        with pytest.raises(DiskFull):
            world.jobs.submit("work", {"name": "c"}, {"upload": folders[2].name})
    world.restart()
    assert age() == [True, True, False]
    world.work.let(6)
    until(world.jobs, world.jobs.list(1)[0][0].id, "done")
    waiting.until(lambda: not folders[1].exists())  # after the end of its job is on disk
    assert [folder.exists() for folder in folders] == [False, False, True]
