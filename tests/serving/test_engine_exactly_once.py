"""For any mix of images, faults, deadlines and cancellations, each request is answered exactly once and in order."""

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from fake_encoder import FakeEncoder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import PATIENCE_S

from nnclr_hub.errors import DeadlineExceeded, ImageError, NotReady, Overloaded, RequestTooLarge, ServiceError
from serving.engine import Engine
from serving.settings import Settings
from serving.telemetry import Metrics

CAPACITY = 12
GOOD = st.integers(1, 99).map(str)
FAULTY = st.sampled_from(["bad", "crash", "exit", "poison", "deadly", "endless", "sleepy"])


@dataclass(frozen=True)
class Call:
    """A request: its images, where it comes from, when it is cancelled, and its deadline."""

    words: list[str]
    in_loop: bool
    cancel_after: float | None
    deadline_s: float | None


CALLS = st.builds(
    Call,
    st.lists(st.one_of(GOOD, GOOD, GOOD, FAULTY), min_size=1, max_size=CAPACITY + 1),
    st.booleans(),
    st.one_of(st.none(), st.none(), st.sampled_from([0.0, 0.005, 0.03])),
    st.one_of(st.none(), st.sampled_from([0.02, 0.2])),
)


def crash():
    raise ValueError


def leave():
    raise SystemExit


def sometimes_slow():
    time.sleep(0.01)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(CALLS, min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 5), st.sampled_from([0.0, 2.0]))
def test_every_image_leaves_exactly_once(plan, threads, max_batch, max_wait_ms):
    release = threading.Event()
    encoder = FakeEncoder(
        decoding={"crash": crash, "exit": leave, "sleepy": sometimes_slow},
        forwarding={"poison": crash, "deadly": leave, "endless": lambda: release.wait(5), "sleepy": sometimes_slow},
    )
    options = Settings(
        capacity=CAPACITY,
        decode_threads=threads,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        stall_s=0.05,
        deadline_s=PATIENCE_S,
    )
    engine = Engine(encoder, options, Metrics())
    outcomes = asyncio.run(run_all(engine, plan))
    assert len(outcomes) == len(plan)
    for call, outcome in zip(plan, outcomes, strict=True):
        check(call, outcome)
    release.set()
    until_recovered(engine)
    admitted = sum(
        len(call.words)
        for call, outcome in zip(plan, outcomes, strict=True)
        if not isinstance(outcome, Overloaded | RequestTooLarge | Refused)
    )
    assert sum(counts(engine).values()) == admitted
    results = until_answered(engine, [b"5", b"bad", b"6"])
    assert (results[0][0], type(results[1]), results[2][0]) == (5, ImageError, 6)
    engine.close(1)


class Refused(Exception):
    """The engine had a fault when the request came."""


async def run_all(engine: Engine, plan: list[Call]) -> list[object]:
    return list(await asyncio.gather(*(outcome_of(engine, call) for call in plan)))


async def outcome_of(engine: Engine, call: Call) -> object:
    """The results, or the error; a CancelledError for a cancelled request."""
    images = [f"{word}:{i}".encode() for i, word in enumerate(call.words)]
    if call.in_loop:
        task = asyncio.create_task(engine.run_async(images, deadline_s=call.deadline_s))
    else:
        task = asyncio.create_task(asyncio.to_thread(engine.run, images, deadline_s=call.deadline_s))
    if call.in_loop and call.cancel_after is not None:
        await asyncio.sleep(call.cancel_after)
        task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    assert done, "a request was never answered"
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    if isinstance(error, NotReady) and "fault" in str(error):
        return Refused()
    return error or task.result()


def check(call: Call, outcome: object) -> None:
    if isinstance(outcome, list):
        assert len(outcome) == len(call.words)
        for word, result in zip(call.words, outcome, strict=True):
            if word == "bad":
                assert isinstance(result, ImageError)
            else:
                assert isinstance(result, np.ndarray)
                assert result[0] == (float(word) if word.isdigit() else -1.0)
        assert not {"crash", "exit", "poison", "deadly", "endless"} & set(call.words)
    elif isinstance(outcome, asyncio.CancelledError):
        assert call.in_loop
        assert call.cancel_after is not None
    elif isinstance(outcome, RequestTooLarge):
        assert len(call.words) > CAPACITY
    else:
        assert isinstance(outcome, ServiceError | Refused), outcome
        if isinstance(outcome, DeadlineExceeded):
            assert call.deadline_s is not None


def counts(engine: Engine) -> Counter:
    return Counter(
        {
            sample.labels["outcome"]: sample.value
            for metric in engine.metrics.images.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }
    )


def until_answered(engine: Engine, images: list[bytes]) -> list:
    """Return the results. On a busy machine, any step may take longer than stall_s."""
    while True:
        try:
            return engine.run(images)
        except NotReady:
            until_recovered(engine)


def until_recovered(engine: Engine) -> None:
    end = time.monotonic() + PATIENCE_S
    while engine.fault or engine.in_work:
        assert time.monotonic() < end, (engine.fault, engine.in_work)
        time.sleep(0.005)
