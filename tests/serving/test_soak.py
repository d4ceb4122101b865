"""A short soak test: a saturated server, damaged images, and clients that disconnect."""

import gc
import os
import sys

import pytest
from soak import MAY_OPEN, Soak, judge_memory, soak, summary

# a client cancelled while it connects leaves asyncio's transport to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")


def check(done: Soak) -> None:
    assert list(done.wrong) == []
    outcomes = done.heard.outcomes.keys()
    # every kind of outcome occurred
    assert {"200", "204", "429", "cancelled"} <= outcomes
    assert outcomes <= {"200", "204", "404", "415", "422", "429", "503", "504", "cancelled", "timed out"}


def test_every_request_is_answered_once_and_the_server_stays_ready(tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_BACKEND", "onnx")  # the starter has its graph, so the server starts without torch
    done = soak(tmp_path, 2, requests=250, callers=40)
    check(done)
    files = [one.files for one in done.settled()]
    assert files[-1] <= files[0] + MAY_OPEN  # no connection or file is left open
    gc.collect()


@pytest.mark.slow
def test_memory_is_constant_over_minutes(tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_BACKEND", "auto")
    done = soak(tmp_path, 60 * float(os.environ.get("NNCLR_SOAK_MINUTES", "5")))
    sys.stdout.write(summary(done))
    check(done)
    assert judge_memory(done) == []
