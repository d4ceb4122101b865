"""The log of jobs: their start, their end, and no private data."""

import json
import logging

import pytest
from job_worlds import until

from serving.telemetry import Json, Text


@pytest.fixture
def lines(caplog):
    """lines(formatter) -> the log lines of jobs so far."""
    caplog.set_level(logging.INFO, "nnclr_hub.jobs")
    return lambda formatter: [formatter.format(one) for one in caplog.records if one.name == "nnclr_hub.jobs"]


def test_start_and_end_are_logged_with_the_duration(world, lines):
    job = world.submit("a secret name")
    until(world.jobs, job.id, "running")
    world.work.let(3)
    ended = until(world.jobs, job.id, "done")
    start, end = (json.loads(line) for line in lines(Json()))
    assert (start["message"], start["level"], start["job"]) == ("work job started", "info", job.id)
    assert (end["message"], end["kind"], end["done"]) == ("work job done", "work", 3)
    assert end["s"] == pytest.approx(ended.ended - ended.started, abs=0.001)
    assert lines(Text())[1].endswith(f"info    work job done job={job.id} s={end['s']} done=3")
    assert "secret" not in "".join(lines(Json()))


def test_a_failure_is_a_warning_with_its_code(world, lines):
    job = world.submit("a", fails=True)
    world.work.let(3)
    until(world.jobs, job.id, "failed")
    ends = json.loads(lines(Json())[-1])
    assert (ends["message"], ends["level"], ends["code"]) == ("work job failed", "warning", "invalid_request")


def test_a_job_cancelled_while_it_waited_has_no_duration(world, lines):
    world.submit("a")
    second = world.submit("b")
    world.jobs.cancel(second.id)
    [ends] = [one for one in map(json.loads, lines(Json())) if one["job"] == second.id]
    assert ends["message"] == "work job cancelled"
    assert "s" not in ends


def test_a_job_interrupted_by_a_shutdown_is_logged_and_starts_again(world, lines):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.restart()
    until(world.jobs, job.id, "running")
    messages = [json.loads(line)["message"] for line in lines(Json())]
    assert [message.split()[2] for message in messages] == ["started", "interrupted", "started"]
