"""What the log tells of jobs: when they begin, how they end, and nothing that is private."""

import json
import logging

import pytest
from job_worlds import until

from serving.logs import Json, Text


@pytest.fixture
def lines(caplog):
    """lines(form) -> what the log of the jobs has so far, as the form writes it."""
    caplog.set_level(logging.INFO, "nnclr_hub.jobs")
    return lambda form: [form.format(one) for one in caplog.records if one.name == "nnclr_hub.jobs"]


def test_beginning_and_end_are_told_with_seconds(world, lines):
    job = world.submit("a secret name")
    until(world.jobs, job.id, "running")
    world.work.let(3)
    ended = until(world.jobs, job.id, "done")
    begins, ends = (json.loads(line) for line in lines(Json()))
    assert (begins["message"], begins["level"], begins["job"]) == ("work job begins", "info", job.id)
    assert (ends["message"], ends["kind"], ends["done"]) == ("work job done", "work", 3)
    assert ends["s"] == pytest.approx(ended.ended - ended.started, abs=0.001)
    assert lines(Text())[1].endswith(f"info    work job done job={job.id} s={ends['s']} done=3")
    assert "secret" not in "".join(lines(Json()))


def test_a_failure_is_a_warning_with_its_code(world, lines):
    job = world.submit("a", fails=True)
    world.work.let(3)
    until(world.jobs, job.id, "failed")
    ends = json.loads(lines(Json())[-1])
    assert (ends["message"], ends["level"], ends["code"]) == ("work job failed", "warning", "invalid_request")


def test_what_never_began_has_no_seconds(world, lines):
    """Cancelled while it waited."""
    world.submit("a")
    second = world.submit("b")
    world.jobs.cancel(second.id)
    told = [json.loads(line) for line in lines(Json())]
    [ends] = [one for one in told if one["job"] == second.id]
    assert ends["message"] == "work job cancelled"
    assert "s" not in ends


def test_a_job_that_the_servers_end_cuts_short_is_told_so_and_begins_anew(world, lines):
    job = world.submit("a")
    until(world.jobs, job.id, "running")
    world.restart()
    until(world.jobs, job.id, "running")
    told = [json.loads(line)["message"] for line in lines(Json())]
    assert [words.split()[2:4] for words in told] == [["begins"], ["is", "cut"], ["begins"]]
