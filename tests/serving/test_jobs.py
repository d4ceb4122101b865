"""Jobs: the queue, progress, results and errors."""

import json
import time

from job_worlds import until

from serving.jobs import HIDDEN


def test_a_job_reports_its_progress_and_result(world):
    job = world.submit("a", steps=4)
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
    assert (done.done, done.total, done.result, done.error) == (4, 4, {"made": "a"}, None)
    assert job.created <= done.started <= done.ended
    assert (done.eta_s, done.phase) == (None, "")
    assert done.changes > running.changes > job.changes
    assert world.made() == ["a"]


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
    until(world.jobs, world.submit("c").id, "done")
    assert world.made() == ["c"]


def test_hidden_parameters_are_kept_until_the_job_ends_and_never_shown(world):
    job = world.jobs.submit("work", {"name": "a"}, {"secret": "a path"})
    assert json.loads(world.store.records.get(HIDDEN, job.id).data) == {"secret": "a path"}
    world.work.let(3)
    done = until(world.jobs, job.id, "done")
    assert (world.work.secrets, done.params) == (["a path"], {"name": "a"})
    assert world.store.records.get(HIDDEN, job.id) is None


def test_jobs_are_counted(world):
    world.work.let(9)
    until(world.jobs, world.submit("a").id, "done")
    until(world.jobs, world.submit("b", fails=True).id, "failed")
    value = world.metrics.registry.get_sample_value
    assert value("nnclr_jobs_total", {"kind": "work", "outcome": "done"}) == 1
    assert value("nnclr_jobs_total", {"kind": "work", "outcome": "failed"}) == 1
    assert value("nnclr_jobs_active") == 0
