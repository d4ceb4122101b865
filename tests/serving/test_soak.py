"""A short soak test: a saturated server, damaged images, and clients that disconnect."""

import gc
import os
import sys

import pytest
from soak import MAY_OPEN, Heard, Ledger, Sample, Soak, judge_memory, soak, summary

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


@pytest.mark.parametrize(
    ("growth", "found"),
    [
        (0.0, []),
        (
            1.0,
            [
                "memory grew by 19.7% after it had settled",
                "open files went from 154 to 185",
                "open threads went from 154 to 185",
            ],
        ),
    ],
    ids=["flat", "growing"],
)
def test_growth_of_the_process_is_found(growth, found):
    samples = [Sample(float(at), *(100 + growth * at,) * 3) for at in range(101)]
    wrong = judge_memory(Soak(Heard(), samples, [], 100.0))
    assert wrong == found


def test_missing_and_unexpected_items_are_found():
    ledger = Ledger(there={"a", "b"}, unsure={"c"})
    assert ledger.differences({"a", "b", "c"}) == ledger.differences({"a", "b"}) == []
    missing, extra = ledger.differences({"a", "d"})
    assert "missing, such as b" in missing
    assert "acknowledged, such as d" in extra


@pytest.mark.slow
def test_memory_is_constant_over_minutes(tmp_path, monkeypatch):
    monkeypatch.setenv("NNCLR_BACKEND", "auto")
    done = soak(tmp_path, 60 * float(os.environ.get("NNCLR_SOAK_MINUTES", "5")))
    sys.stdout.write(summary(done))
    check(done)
    assert judge_memory(done) == []
