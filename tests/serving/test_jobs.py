"""Jobs: queued, run, cancelled, interrupted, taken up again; none lost, none done twice, whatever ends the server."""

import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from nnclr_hub.errors import DiskFull, InvalidRequest, JobNotFound, NotReady, Overloaded, StoreError
from nnclr_hub.store import open_store
from nnclr_hub.store.records import Record
from nnclr_hub.workbench import Workbench
from serving.jobs import Jobs, Kind, Outcome
from serving.jobs.ledger import INPUT, JOB, MARK, Ledger
from serving.jobs.patience import Patient
from serving.telemetry import Metrics


class Work:
    """A kind of job whose steps the test allows one by one."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)
        self.begun: list[str] = []
        self.cleaned: list[str] = []
        self.inputs: list[bytes] = []

    def run(self, task) -> Outcome:
        self.begun.append(task.params["name"])
        self.inputs.append(task.input)
        for step in range(task.params.get("steps", 3)):
            task.progress(step, task.params.get("steps", 3))
            while not self.steps.acquire(timeout=0.01):
                task.check()
        if task.params.get("fails"):
            raise InvalidRequest(f"No such thing in {Path(__file__).resolve()}.")
        if task.params.get("breaks"):
            raise ZeroDivisionError
        name = task.params["name"]
        return Outcome({"made": name}, lambda records: records.put(Record("made", name, {})))

    def clean(self, bench, params) -> None:
        self.cleaned.append(params["name"])

    def let(self, steps: int) -> None:
        for _ in range(steps):
            self.steps.release()


class World:
    """A store, jobs on it, and their work."""

    def __init__(self, folder: Path, **options) -> None:
        self.store = open_store(str(folder))
        self.metrics = Metrics()
        self.work, self.other = Work(), Work()
        self.options = {"waiting": 3, "keep": 100, **options}
        self.jobs = self.new()
        self.jobs.start()

    def new(self) -> Jobs:
        bench = Workbench(None, self.store)  # type: ignore[arg-type]
        kinds = {"work": Kind(self.work.run, self.work.clean), "other": Kind(self.other.run)}
        return Jobs(bench, self.metrics, kinds=kinds, **self.options)

    def restart(self) -> None:
        self.jobs.stop()
        self.jobs = self.new()
        self.jobs.start()

    def submit(self, name: str, kind: str = "work", **params):
        return self.jobs.submit(kind, {"name": name, **params})

    def made(self) -> list[str]:
        return [record.name for record in self.store.records.list("made")]


@pytest.fixture
def make(tmp_path):
    worlds: list[World] = []

    def make(**options) -> World:
        worlds.append(World(tmp_path / f"store{len(worlds)}", **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.jobs.stop()
        world.store.close()


@pytest.fixture
def world(make):
    return make()


def until(jobs: Jobs, id: str, *states: str):
    for _ in range(20_000):
        job = jobs.get(id)
        # one that runs has its total once it is at work
        if job.state in states and (job.state != "running" or job.total):
            return job
        time.sleep(0.005)
    pytest.fail(f"{job} does not become {states}")


def test_a_job_tells_how_far_it_is_and_what_it_came_to(world):
    job = world.submit("a", steps=4)
    assert (job.state, job.done, job.total) == ("queued", 0, 0)
    world.work.let(2)
    while world.jobs.get(job.id).done < 2:
        time.sleep(0.005)
    running = world.jobs.get(job.id)
    assert (running.state, running.done, running.total) == ("running", 2, 4)
    assert running.rate is not None
    assert running.eta_s == pytest.approx(2 / running.rate, rel=0.5)
    assert world.made() == []
    world.work.let(2)
    done = until(world.jobs, job.id, "done")
    assert (done.done, done.total, done.result, done.error) == (4, 4, {"made": "a"}, None)
    assert job.created <= done.started <= done.ended
    assert done.eta_s is None
    assert done.changes > running.changes > job.changes
    assert world.made() == ["a"]


def test_one_kind_waits_for_its_own_and_not_for_another(world):
    first, second, other = world.submit("a"), world.submit("b"), world.submit("c", "other")
    until(world.jobs, first.id, "running")
    until(world.jobs, other.id, "running")
    assert world.jobs.get(second.id).state == "queued"
    world.work.let(6)
    until(world.jobs, second.id, "done")
    assert world.work.begun == ["a", "b"]


def test_more_than_may_wait_are_refused(world):
    until(world.jobs, world.submit("running").id, "running")
    waiting = [world.submit(name) for name in "abc"]
    with pytest.raises(Overloaded, match="3 jobs wait"):
        world.submit("d")
    world.jobs.cancel(waiting[0].id)
    world.submit("d")


def test_a_waiting_job_is_cancelled_at_once_and_never_begun(world):
    first, second = world.submit("a"), world.submit("b")
    assert world.jobs.cancel(second.id).state == "cancelled"
    assert world.jobs.cancel(second.id).state == "cancelled"
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
    assert until(world.jobs, job.id, "cancelled").result is None
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


def test_a_job_whose_beginning_cannot_be_noted_fails(world, monkeypatch):
    note = world.jobs._board.ledger.note

    def refuses(job, *commit):
        if job.state == "running":
            raise StoreError("The disk answers with an error.")
        note(job, *commit)

    monkeypatch.setattr(world.jobs._board.ledger, "note", refuses)
    job = until(world.jobs, world.submit("a").id, "failed")
    assert "The disk answers" in job.error["detail"]
    monkeypatch.undo()
    world.work.let(3)
    until(world.jobs, world.submit("b").id, "done")


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


def test_a_refusal_is_a_problem_without_a_path_and_a_defect_says_nothing(world, caplog):
    world.work.let(9)
    job = until(world.jobs, world.submit("a", fails=True).id, "failed")
    assert job.error == {"status": 422, "code": "invalid_request", "detail": "No such thing in test_jobs.py."}
    job = until(world.jobs, world.submit("b", breaks=True).id, "failed")
    assert (job.error["status"], job.error["code"]) == (500, "internal")
    assert "ZeroDivision" not in str(job.error)
    assert "ZeroDivisionError" in caplog.text
    until(world.jobs, world.submit("c").id, "done")
    assert world.made() == ["c"]


def test_what_came_with_a_job_is_kept_until_it_ends(world):
    job = world.jobs.submit("work", {"name": "a"}, b"vectors")
    assert world.store.records.get(INPUT, job.id).data == b"vectors"
    world.work.let(3)
    until(world.jobs, job.id, "done")
    assert world.work.inputs == [b"vectors"]
    assert world.store.records.get(INPUT, job.id) is None


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


def test_old_ended_jobs_are_forgotten_and_no_other(make):
    world = make(keep=2)
    waiting = world.submit("running")
    until(world.jobs, waiting.id, "running")
    world.other.let(100)
    ended = [until(world.jobs, world.submit(name, "other").id, "done").id for name in "abcd"]
    assert [job.id for job in world.jobs.list(9)[0]] == [ended[3], ended[2], waiting.id]
    with pytest.raises(JobNotFound):
        world.jobs.get(ended[0])


def test_no_step_of_a_job_reads_what_other_jobs_came_to(make, monkeypatch):
    """Neither a submission with a mark, nor `latest`, the end or the forgetting of a job goes through the others."""
    world = make(keep=3)
    world.work.let(100)
    first = [until(world.jobs, world.submit(name).id, "done").id for name in "abc"]
    assert [job.result for job in world.jobs.list(9)[0]] == [None] * 3
    assert world.jobs.get(first[0]).result == {"made": "a"}
    assert not any("made" in str(record.content.get("result")) for record in world.store.records.list(JOB))
    world.restart()

    def all_of_them(*_):
        raise AssertionError

    monkeypatch.setattr(world.jobs._board.ledger, "newest_first", all_of_them)
    job = world.jobs.submit("work", {"name": "d"}, mark="m")
    assert until(world.jobs, job.id, "done").result == {"made": "d"}
    assert world.jobs.get("latest").id == job.id
    with pytest.raises(JobNotFound):
        world.jobs.get(first[0])


def test_a_job_ends_once_even_if_old_ones_cannot_be_forgotten(make, monkeypatch):
    world = make(keep=0)
    ledger = world.jobs._board.ledger
    ends = []
    note, prune = ledger.note, ledger.prune

    def noted(job, *commit):
        note(job, *commit)
        ends.extend([job.id] if job.has_ended else [])

    def full():
        raise DiskFull("The disk is full.")

    monkeypatch.setattr(ledger, "note", noted)
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


def test_a_mark_is_forgotten_with_its_job(make):
    world = make(keep=1)
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


def test_going_down_interrupts_and_coming_back_goes_on_in_order(world):
    running, waiting = world.submit("a"), world.submit("b")
    until(world.jobs, running.id, "running")
    world.jobs.stop()
    with pytest.raises(NotReady):
        world.submit("c")
    stored = [Ledger(world.store.records, 9).get(job.id) for job in (running, waiting)]
    assert [(job.state, job.attempts) for job in stored if job] == [("queued", 0), ("queued", 0)]
    world.jobs = world.new()
    with pytest.raises(NotReady):
        world.jobs.get(running.id)
    world.jobs.start()
    world.work.let(6)
    until(world.jobs, waiting.id, "done")
    assert world.work.begun == ["a", "a", "b"]
    assert world.made() == ["a", "b"]
    assert world.work.cleaned == []


def test_what_was_cancelled_but_not_yet_cleaned_up_is_so_at_the_next_start(world):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.jobs.stop()
    ledger = Ledger(world.store.records, 9)
    left = ledger.get(job.id)
    assert left is not None
    ledger.note(replace(left, state="running", cancelling=True))
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


def test_a_job_that_took_the_server_down_thrice_is_given_up(world):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.jobs.stop()
    ledger = Ledger(world.store.records, 9)
    left = ledger.get(job.id)
    assert left is not None
    ledger.note(replace(left, state="running", attempts=3))
    ledger.add(replace(left, id=ledger.new_id(), kind="of the future"), None)
    world.jobs = world.new()
    world.jobs.start()
    given_up = world.jobs.get(job.id)
    assert (given_up.state, given_up.error["code"]) == ("failed", "interrupted")
    assert "3 times" in given_up.error["detail"]
    assert world.jobs.list(1)[0][0].error["detail"] == "This version of the server has no jobs of this kind."
    assert world.work.begun == ["a"]


def test_a_full_disk_delays_the_end_and_loses_nothing(world, monkeypatch):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    monkeypatch.setattr("serving.jobs.performing.RETRY_S", 0.01)
    refused = threading.Event()
    put = world.store.records.put

    def full(*records):
        refused.set()
        raise DiskFull("The disk is full.")

    monkeypatch.setattr(world.store.records, "put", full)
    world.work.let(3)
    assert refused.wait(60)
    assert world.jobs.get(job.id).state == "running"
    monkeypatch.setattr(world.store.records, "put", put)
    assert until(world.jobs, job.id, "done").result == {"made": "a"}
    assert world.made() == ["a"]


def test_a_mark_is_of_one_job(world):
    job = world.jobs.submit("work", {"name": "a"}, mark="m")
    assert world.jobs.submit("work", {"name": "a"}, mark="m").id == job.id
    world.work.let(9)
    until(world.jobs, job.id, "done")
    assert world.jobs.submit("work", {"name": "a"}, mark="m").state == "done"
    assert world.jobs.submit("work", {"name": "a"}, mark="n").id != job.id
    assert world.jobs.submit("work", {"name": "a"}).id != job.id


def test_ids_grow_even_if_the_clock_goes_back(make, monkeypatch):
    world = make(waiting=9)
    ids = [world.submit("a").id]
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    ids += [world.submit("b").id, world.submit("c").id]
    world.restart()
    ids.append(world.submit("d", "other").id)
    assert ids == sorted(set(ids))


def test_jobs_are_counted(world):
    world.work.let(9)
    until(world.jobs, world.submit("a").id, "done")
    until(world.jobs, world.submit("b", fails=True).id, "failed")
    value = world.metrics.registry.get_sample_value
    assert value("nnclr_jobs_total", {"kind": "work", "outcome": "done"}) == 1
    assert value("nnclr_jobs_total", {"kind": "work", "outcome": "failed"}) == 1
    assert value("nnclr_jobs_active") == 0


def test_embedding_waits_its_turn():
    class Busy:
        name, refusals = "x", [Overloaded("busy", 2.0), NotReady("starting")]

        def embed_each(self, images):
            if self.refusals:
                raise self.refusals.pop(0)
            return [np.full(2, float(image)) for image in images]

    waits: list[float] = []
    patient = Patient(Busy(), waits.append)  # type: ignore[arg-type]
    found = patient.embed_each(str(i) for i in range(70))
    assert [float(one[0]) for one in found] == list(range(70))
    assert waits == [2.0, 1.0]
    assert patient.name == "x"


KILLS = 2
SERVER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from nnclr_hub.store import open_store
from nnclr_hub.store.records import Record
from nnclr_hub.workbench import Workbench
from serving.jobs import Jobs, Kind, Outcome
from serving.telemetry import Metrics
import serving.jobs.jobs as module
module.MOST_ATTEMPTS = 1000

def run(task):
    for step in range(5):
        task.progress(step, 5)
        time.sleep(0.002)
    def commit(records):
        there = records.get("made", task.params["name"])
        records.put(Record("made", task.params["name"], {"times": (there.content["times"] if there else 0) + 1}))
    return Outcome({}, commit)

with open_store(sys.argv[1]) as store:
    jobs = Jobs(Workbench(None, store), Metrics(), waiting=10000, keep=10000, kinds={"a": Kind(run), "b": Kind(run)})
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


def test_no_job_is_lost_or_done_twice_by_kills(tmp_path):
    """kill -9 at any moment; what was acknowledged is done in the end, exactly once, and so is what was on its way."""
    root, total = str(Path(__file__).parents[2]), 120
    acknowledged: set[int] = set()
    begun: set[int] = set()
    for kills in range(KILLS + 1):
        first = max(begun, default=-1) + 1
        command = [sys.executable, "-c", SERVER, str(tmp_path / "store"), root, str(first), str(total)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline()]
            if kills < KILLS:
                time.sleep(0.1 + 0.15 * kills)
                child.send_signal(signal.SIGKILL)
                lines += child.stdout
            else:
                while lines[-1] != "idle\n":
                    assert lines[-1], "it ended by itself"
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
