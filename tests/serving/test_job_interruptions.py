"""Jobs when the server shuts down, crashes or cannot write: no job is lost, and none is done twice."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import waiting
from job_worlds import until

from nnclr_hub.errors import DiskFull, NotReady, StoreError
from nnclr_hub.store import open_store
from nnclr_hub.workbench import staging
from serving.jobs import JOB, JobRecords


def test_jobs_interrupted_by_a_shutdown_run_again_in_order(world):
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


def test_a_job_that_crashed_the_server_three_times_fails(world):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.jobs.stop()
    records = JobRecords(world.store.records, 9)
    left = records.get(job.id)
    assert left is not None
    records.update(replace(left, state="running", attempts=3))
    records.add(replace(left, id=records.new_id(), kind="of the future"), {})
    world.jobs = world.new()
    world.jobs.start()
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


KILLS = 2
SERVER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from nnclr_hub.store import open_store
from nnclr_hub.store.records import Record
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.tasks import Task
from serving.jobs import Jobs
from serving.telemetry import Metrics
sys.path.insert(0, sys.argv[2] + "/tests")
from job_worlds import WorkRequest
import serving.jobs as module
module.MAX_ATTEMPTS = 1000

def run(bench, request, context):
    for step in range(5):
        context.progress(step, 5)
        time.sleep(0.002)
    def commit(records):
        there = records.get("made", request.name)
        records.put(Record("made", request.name, {"times": (there.content["times"] if there else 0) + 1}))
    context.at_end(commit)
    return {"made": request.name}

with open_store(sys.argv[1]) as store:
    tasks = {name: Task(name, WorkRequest, "/x", False, run) for name in "ab"}
    jobs = Jobs(Workbench(None, store), Metrics(), waiting=10000, keep=10000, tasks=tasks)
    jobs.start()
    number = int(sys.argv[3])
    while number < int(sys.argv[4]):
        print("begin", number, flush=True)
        jobs.submit("ab"[number % 2], {"name": str(number)})
        print("done", number, flush=True)
        number += 1
        time.sleep(0.003)
    while any(job.state in ("queued", "running") for job in jobs.list(100000)[0]):
        time.sleep(0.01)
    print("idle", flush=True)
    sys.stdin.read()
"""


def test_kills_neither_lose_nor_repeat_a_job(tmp_path):
    """After kill -9 at any time, each acknowledged job is done exactly once in the end."""
    root, total = str(Path(__file__).parents[2]), 60
    acknowledged: set[int] = set()
    begun: set[int] = set()
    for kills in range(KILLS + 1):
        first = max(begun, default=-1) + 1
        command = [sys.executable, "-c", SERVER, str(tmp_path / "store"), root, str(first), str(total)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline()]
            if kills < KILLS:
                time.sleep(0.1 + 0.1 * kills)
                child.send_signal(signal.SIGKILL)
                lines += child.stdout
            else:
                while lines[-1] != "idle\n":
                    assert lines[-1], "the server crashed"
                    lines.append(child.stdout.readline())
                child.send_signal(signal.SIGKILL)
        for line in lines:
            word, _, number = line.rstrip("\n").partition(" ")
            (acknowledged if word == "done" else begun if word == "begin" else set()).add(int(number or 0))
    with open_store(str(tmp_path / "store")) as store:
        made = {int(record.name): record.content["times"] for record in store.records.list("made")}
        states = {record.content["state"] for record in store.records.list(JOB)}
    assert states == {"done"}
    assert acknowledged <= made.keys() <= begun
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
