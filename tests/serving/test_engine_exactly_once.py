"""Whatever mix of images, faults, deadlines and cancels: each request is answered once, in order, none is lost."""

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
good = st.integers(1, 99).map(str)
faulty = st.sampled_from(["bad", "crash", "exit", "hang", "poison", "deadly", "endless", "sleepy"])


@dataclass(frozen=True)
class Ask:
    """A request: its images, by whom it is made, when it is given up, and how much patience it has."""

    words: list[str]
    in_loop: bool
    cancel_after: float | None
    patience: float | None


asks = st.builds(
    Ask,
    st.lists(st.one_of(good, good, good, faulty), min_size=1, max_size=CAPACITY + 1),
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
@given(st.lists(asks, min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 5), st.sampled_from([0.0, 2.0]))
def test_every_image_leaves_exactly_once(plan, threads, max_batch, max_wait_ms):
    release = threading.Event()
    encoder = FakeEncoder(
        decoding={"crash": crash, "exit": leave, "hang": lambda: release.wait(5), "sleepy": sometimes_slow},
        forwarding={"poison": crash, "deadly": leave, "endless": lambda: release.wait(5), "sleepy": sometimes_slow},
    )
    chosen = Settings(
        capacity=CAPACITY,
        decode_threads=threads,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        stall_s=0.05,
        deadline_s=5,
    )
    engine = Engine(encoder, chosen, Metrics())
    outcomes = asyncio.run(ask_all(engine, plan))
    assert len(outcomes) == len(plan)
    for ask, outcome in zip(plan, outcomes, strict=True):
        check(ask, outcome)
    release.set()
    until_well(engine)
    admitted = sum(
        len(ask.words)
        for ask, outcome in zip(plan, outcomes, strict=True)
        if not isinstance(outcome, Overloaded | RequestTooLarge | Refused)
    )
    assert sum(counts(engine).values()) == admitted
    results = engine.embed_each([b"5", b"bad", b"6"])
    assert (results[0][0], type(results[1]), results[2][0]) == (5, ImageError, 6)
    engine.close(1)


class Refused(Exception):
    """The engine was ill when it was asked."""


async def ask_all(engine: Engine, plan: list[Ask]) -> list[object]:
    return list(await asyncio.gather(*(outcome_of(engine, ask) for ask in plan)))


async def outcome_of(engine: Engine, ask: Ask) -> object:
    """Results, or the error; cancelled requests give their CancelledError."""
    images = [f"{word}:{i}".encode() for i, word in enumerate(ask.words)]
    if ask.in_loop:
        task = asyncio.create_task(engine.embed_each_async(images, deadline_s=ask.patience))
    else:
        task = asyncio.create_task(asyncio.to_thread(engine.embed_each, images, deadline_s=ask.patience))
    if ask.in_loop and ask.cancel_after is not None:
        await asyncio.sleep(ask.cancel_after)
        task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    assert done, "a request was never answered"
    if task.cancelled():
        return asyncio.CancelledError()
    error = task.exception()
    if isinstance(error, NotReady) and "not well" in str(error):
        return Refused()
    return error or task.result()


def check(ask: Ask, outcome: object) -> None:
    if isinstance(outcome, list):
        assert len(outcome) == len(ask.words)
        for word, result in zip(ask.words, outcome, strict=True):
            if word == "bad":
                assert isinstance(result, ImageError)
            else:
                assert isinstance(result, np.ndarray)
                assert result[0] == (float(word) if word.isdigit() else -1.0)
        assert not {"crash", "exit", "hang", "poison", "deadly", "endless"} & set(ask.words)
    elif isinstance(outcome, asyncio.CancelledError):
        assert ask.in_loop
        assert ask.cancel_after is not None
    elif isinstance(outcome, RequestTooLarge):
        assert len(ask.words) > CAPACITY
    else:
        assert isinstance(outcome, ServiceError | Refused), outcome
        if isinstance(outcome, DeadlineExceeded):
            assert ask.patience is not None


def counts(engine: Engine) -> Counter:
    return Counter(
        {
            sample.labels["outcome"]: sample.value
            for metric in engine._metrics.images.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        }
    )


def until_well(engine: Engine) -> None:
    end = time.monotonic() + PATIENCE_S
    while not engine.healthy or engine.in_work:
        assert time.monotonic() < end, (engine.illness, engine.in_work)
        time.sleep(0.005)
