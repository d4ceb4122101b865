"""The engine and its models: batches, permits, tasks, requests that end early, and threads that fail."""

import asyncio
import contextvars
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from fake_encoder import FakeEncoder, busy, first_column, numbers, queued, sample
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_shelf import KB, Shelf
from waiting import PATIENCE_S, until

from nnclr_hub import load_encoder
from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.attention import AttentionSettings
from nnclr_hub.errors import (
    FingerprintMismatch,
    ImageError,
    InvalidRequest,
    NotReady,
    Overloaded,
    RequestTooLarge,
    ServiceError,
    UnknownModel,
)
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.tasks import Cancelled
from serving.engine import Engine, patience
from serving.models import Engines
from serving.settings import Settings
from serving.stages import ImageTask, WorkItem
from serving.telemetry import Metrics, Timings, current

WORDS = ImageTask(bytes.decode, str.upper)


@pytest.fixture(scope="module")
def real(model):
    made = Engine(load_encoder(model, device="cpu"), Settings(capacity=200, max_batch=8))
    made.warm_up()
    yield made
    made.close()


def test_vectors_do_not_depend_on_the_batch(real, model, image_files):
    want = load_encoder(model, device="cpu").embed(image_files)
    np.testing.assert_allclose(real.run(image_files), want, atol=1e-5)
    np.testing.assert_allclose([real.run([one])[0] for one in image_files[:8]], want[:8], atol=1e-5)
    assert real.run([]) == []


def batches_while_busy(engine: Engine, encoder: FakeEncoder, images: list[int]) -> list[int]:
    """Return the sizes of the batches of a request that arrives while the device is busy with one image."""
    release = threading.Event()
    with busy(engine, encoder, release), ThreadPoolExecutor(1) as pool:
        before = len(encoder.batches)
        answer = pool.submit(engine.run, numbers(*images))
        until(lambda: queued(engine) == len(images))
        release.set()
        assert first_column(answer.result()) == images
    return encoder.batches[before:]


def test_a_busy_device_fills_its_batches(make_engine):
    encoder = FakeEncoder()
    assert batches_while_busy(make_engine(encoder), encoder, list(range(2, 22))) == [8, 8, 4]


def test_batches_do_not_exceed_the_largest_compiled_size(make_engine):
    encoder = FakeEncoder()
    encoder.backend.buckets = (1, 2, 4)
    engine = make_engine(encoder)
    engine.warm_up()
    assert encoder.batches == [1, 2, 4, 1]
    assert batches_while_busy(engine, encoder, list(range(1, 8))) == [4, 3]


def test_a_batch_of_all_images_in_progress_waits_for_no_others(make_engine):
    assert first_column(make_engine(FakeEncoder(), max_wait_ms=1e9).run(numbers(1, 2))) == [1, 2]


def test_batches_stay_halved_after_the_device_ran_out_of_memory(make_engine):
    encoder = FakeEncoder()

    def at_most_three():
        if encoder.batches[-1] > 3:
            raise MemoryError("CUDA out of memory")

    encoder.forwarding["3"] = at_most_three
    engine = make_engine(encoder)
    assert batches_while_busy(engine, encoder, [3] * 8) == [8, 4, 2, 2, 4, 2, 2]
    assert first_column(engine.run(numbers(*[3] * 9))) == [3] * 9
    assert max(encoder.batches[8:]) <= 2


def test_more_costly_images_than_cores_delay_no_other(make_engine):
    """Their threads do not return, and no other image wakes one."""
    costly, begun, release = usable_cores() + 1, threading.Semaphore(0), threading.Event()
    encoder = FakeEncoder(decoding={"slow": lambda: (begun.release(), release.wait(120))})
    engine = make_engine(encoder, decode_threads=costly + 1)
    with ThreadPoolExecutor(costly + 1) as pool:
        slow = [pool.submit(engine.run, [b"slow"]) for _ in range(costly)]
        for _ in range(costly):
            assert begun.acquire(timeout=120)
        assert first_column(pool.submit(engine.run, numbers(7)).result(120)) == [7]
        assert not any(one.done() for one in slow)
        release.set()
    assert engine.in_work == 0


def test_a_vector_that_is_not_finite_is_an_error(make_engine):
    encoder = FakeEncoder()
    encoder.forward_crops = lambda crops: np.full((len(crops), 2), np.nan, np.float32)
    with pytest.raises(ServiceError, match="NaN"):
        make_engine(encoder).run(numbers(1))


def test_a_request_gets_all_of_its_permits_or_none(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.before = lambda: release.wait(120)
    engine = make_engine(encoder, capacity=20, capacity_bytes=100)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(engine.run, numbers(*range(1, 19)))
        until(lambda: engine.in_work == 18)
        for request in (numbers(1, 2, 3), [b"1" + b" " * 80]):
            with pytest.raises(Overloaded) as refused:
                engine.run(request)
            assert refused.value.retry_after > 0
        with pytest.raises(Overloaded):
            engine.run([b"a", b"b", b"c"], WORDS)
        assert engine.in_work == 18
        release.set()
        assert len(first.result()) == 18
    assert engine.in_work == 0
    assert len(engine.run(numbers(*range(1, 21)))) == 20
    for request in (numbers(*range(21)), [b"1" + b" " * 100]):
        with pytest.raises(RequestTooLarge):
            engine.run(request)


def test_background_work_leaves_half_of_the_permits_to_requests(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    engine = make_engine(encoder, capacity=8)
    assert len(engine.run(numbers(*range(4)), background=True)) == 4
    with pytest.raises(RequestTooLarge):  # it would never get them while requests come
        engine.run(numbers(*range(5)), background=True)
    with busy(engine, encoder, release), ThreadPoolExecutor(2) as pool:
        with pytest.raises(Overloaded):
            engine.run(numbers(1, 2, 3, 4), background=True)
        assert sample(engine, "nnclr_refused_total", reason="overloaded") == 0  # no client was refused
        job = pool.submit(engine.run, numbers(1, 2, 3), background=True)
        until(lambda: engine.in_work == 4)
        request = pool.submit(engine.run, numbers(1, 2, 3, 4))
        until(lambda: engine.in_work == 8)
        release.set()
        assert (len(job.result()), len(request.result())) == (3, 4)


@pytest.mark.parametrize(
    ("refusals", "sizes", "calls", "waits"),
    [
        ((), range(30, 40), [2] * 5, 0),
        ((Overloaded("busy", 2.0), NotReady("a fault")), [1] * 70, [32, 32, 6], 2),
        ((), [201], RequestTooLarge, 0),
    ],
)
def test_a_job_embeds_in_groups_that_the_engine_admits_and_waits_while_it_is_busy(
    make_engine, monkeypatch, refusals, sizes, calls, waits
):
    engine, left, made, waited = make_engine(FakeEncoder(), capacity_bytes=200), list(refusals), [], []
    run = engine.run

    def refuse_or_run(images, **options):
        if left:
            raise left.pop(0)
        results = run(images, **options)
        made.append(len(images))
        return results

    monkeypatch.setattr(engine, "run", refuse_or_run)
    images = [f"{size}:".ljust(size).encode()[:size] for size in sizes]
    token = patience.set(waited.append)
    try:
        if calls is RequestTooLarge:
            with pytest.raises(RequestTooLarge):
                engine.embed_each(images)
            return
        assert len(engine.embed_each(iter(images))) == len(sizes)
    finally:
        patience.reset(token)
    assert (made, len([seconds for seconds in waited if seconds])) == (calls, waits)


def test_a_job_can_be_cancelled_while_its_images_are_decoded(make_engine):
    decoding, release = threading.Event(), threading.Event()
    engine = make_engine(FakeEncoder(decoding={"slow": lambda: (decoding.set(), release.wait(PATIENCE_S))}))

    def cancel(seconds: float) -> None:
        raise Cancelled

    def work() -> list:
        patience.set(cancel)
        return engine.embed_each([b"slow"])

    try:
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(contextvars.copy_context().run, work)
            assert decoding.wait(PATIENCE_S)
            with pytest.raises(Cancelled):
                job.result(PATIENCE_S / 2)
    finally:
        release.set()
    until(lambda: engine.in_work == 0)


def test_a_decoder_that_hangs_does_not_hang_the_start(make_engine):
    release, encoder = threading.Event(), FakeEncoder()
    encoder.prepare = lambda image: release.wait(PATIENCE_S)
    engine = make_engine(encoder, deadline_s=0.2, stall_s=0.2)
    try:
        with ThreadPoolExecutor(1) as pool, pytest.raises(NotReady):
            pool.submit(engine.warm_up).result(PATIENCE_S / 2)
    finally:
        release.set()


def test_a_request_reports_the_time_of_each_stage(make_engine):
    encoder = FakeEncoder(decoding={"slow": lambda: time.sleep(0.05)})
    encoder.before = lambda: time.sleep(0.1)
    engine = make_engine(encoder)

    async def timings() -> Timings:
        found = Timings()
        current.set(found)
        await engine.run_async([b"slow", *numbers(1)])
        return found

    seconds = asyncio.run(timings()).seconds
    assert list(seconds) == ["decode", "queue", "forward", "embed"]
    assert seconds["decode"] >= 0.05
    assert seconds["forward"] >= 0.1
    assert seconds["embed"] >= 0.15


def test_one_thread_runs_the_network_for_vectors_and_tasks(make_engine):
    """A network used by two threads at once may return anything to either."""
    encoder, threads = FakeEncoder(), set()

    def note_thread(*_):
        threads.add(threading.current_thread().name)

    encoder.before = note_thread
    engine = make_engine(encoder, capacity=100)
    task = ImageTask(encoder.prepare, note_thread)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(engine.run, [b"1", b"2"], task) for _ in range(10)]
        answers += [pool.submit(engine.run, [b"3"]) for _ in range(10)]
        for one in answers:
            one.result()
    assert threads == {"device thread"}


def test_a_task_fails_its_image_or_its_request(make_engine):
    def broken(image):
        raise ImageError("not an image")

    def wrong(image):
        raise InvalidRequest("wrong")

    engine = make_engine(FakeEncoder())
    [result] = engine.run([b"a"], ImageTask(broken, str))
    assert isinstance(result, ImageError)
    for task in (ImageTask(wrong, str), ImageTask(bytes, wrong)):
        with pytest.raises(InvalidRequest, match="wrong"):
            engine.run([b"a"], task)
    with pytest.raises(ServiceError, match="ZeroDivisionError"):
        engine.run([b"a"], ImageTask(bytes, lambda _: 1 / 0))
    assert engine.fault is None
    assert engine.run([b"a"], WORDS) == ["A"]
    engine.close()
    with pytest.raises(NotReady):
        engine.run([b"c"], WORDS)


def device_order(engine: Engine, encoder: FakeEncoder, arrivals: str) -> str:
    """What the device runs while all arrivals wait for it: v is a batch of vectors, t a task."""
    release, log = threading.Event(), []
    encoder.forwarding["first"] = lambda: release.wait(120)
    encoder.before = lambda: log.append("v")
    task = ImageTask(bytes, lambda image: log.append("t"))
    with ThreadPoolExecutor(len(arrivals) + 1) as pool:
        answers = [pool.submit(engine.run, [b"first"])]
        until(lambda: log)  # the device is busy, so all others wait
        for count, one in enumerate(arrivals, 1):
            answers.append(pool.submit(engine.run, [b"1"], task if one == "t" else None))
            until(lambda: queued(engine) == count)  # noqa: B023
        release.set()
        for one in answers:
            one.result()
    return "".join(log[1:])


@pytest.mark.parametrize(
    ("arrivals", "order"),
    [
        ("ttttvvvvvvvvvvvv", "vtvtvtvt"),  # a task takes one of the four places of a batch
        ("vvvvvvvvvvvvtttt", "vvvtttt"),
        ("tvtvtvtvtvtv", "vtvttttt"),
        ("vvvvvvvv", "vv"),
        ("ttt", "ttt"),
    ],
)
def test_at_most_one_task_runs_between_two_batches(make_engine, arrivals, order):
    encoder = FakeEncoder()
    assert device_order(make_engine(encoder, max_batch=4), encoder, arrivals) == order
    assert "tt" not in order.rstrip("t")  # after the last batch no vector waits


# ---- requests that end early: cancelled, or overtaken by the engine's shutdown


def test_a_cancelled_request_is_dropped(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    engine = make_engine(encoder)

    async def cancel() -> None:
        task = asyncio.create_task(engine.run_async(numbers(*range(1, 9))))
        await asyncio.to_thread(until, lambda: queued(engine) == 8)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with busy(engine, encoder, release):
        asyncio.run(cancel())
        assert engine.in_work == 1  # the permits came back although the device does not return
        release.set()
    assert first_column(engine.run(numbers(9))) == [9]
    assert len(encoder.batches) == 2
    assert sample(engine, "nnclr_images_total", model="fake", outcome="cancelled") == 8


def test_cancelled_attention_maps_leave_the_threads_that_load_models(make_engine):
    release = threading.Event()

    class Slow(FakeEncoder):
        @property
        def attention_extractor(self):
            release.wait(PATIENCE_S)

    engine = make_engine(Slow())

    async def ask() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        tasks = [asyncio.create_task(engine.attention_maps_async(AttentionSettings(), b"1")) for _ in range(4)]
        await asyncio.wait(tasks, timeout=0.2)
        for one in tasks:
            one.cancel()
        try:
            await asyncio.wait_for(asyncio.to_thread(int), PATIENCE_S / 4)
        finally:
            release.set()

    asyncio.run(ask())


def test_requests_are_freed_without_garbage_collection(make_engine):
    engine = make_engine(FakeEncoder(), decode_threads=1)

    async def embed(n: int) -> list:
        return await engine.run_async(numbers(n))

    def items() -> list[WorkItem]:
        return [one for one in gc.get_objects() if type(one) is WorkItem]

    others = items()  # cycles of other tests, which are not collected yet
    gc.disable()
    try:
        for n in range(20):
            engine.run(numbers(n))
            asyncio.run(embed(n))
        until(lambda: len(items()) <= len(others) + 3)  # variables of the threads that wait for the next one
    finally:
        gc.enable()


def test_an_image_cancelled_while_it_is_decoded_does_not_wait_for_the_device(make_engine):
    """It is in neither queue then. Its permits come back although the device is busy."""
    decoding, decoded, release = threading.Event(), threading.Event(), threading.Event()
    encoder = FakeEncoder(decoding={"slow": lambda: (decoding.set(), decoded.wait(120))})
    engine = make_engine(encoder)

    async def cancel() -> None:
        task = asyncio.create_task(engine.run_async([b"slow"]))
        assert await asyncio.to_thread(decoding.wait, 120)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with busy(engine, encoder, release):
        asyncio.run(cancel())
        assert engine.in_work == 2
        decoded.set()
        until(lambda: engine.in_work == 1)
        release.set()


def test_a_closed_engine_finishes_its_work_and_takes_no_more(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    engine = make_engine(encoder, max_batch=2)
    with ThreadPoolExecutor(2) as pool:
        encoder.before = lambda: release.wait(120)
        answer = pool.submit(engine.run, numbers(*range(1, 30)))
        until(lambda: encoder.batches)
        engine.drain()
        with pytest.raises(NotReady):
            engine.run(numbers(1))
        closing = pool.submit(engine.close)
        assert not answer.done()
        assert not closing.done()
        release.set()
        closing.result(120)
        assert engine.in_work == 0
        assert first_column(answer.result(120)) == list(range(1, 30))
    for call in (lambda: engine.run(numbers(1)), engine.warm_up):
        with pytest.raises(NotReady):
            call()


# ---- threads that die or stall, and encoders that always fail: requests fail, and the engine recovers


DIED = "device thread died and was replaced"


def exit_thread():
    raise SystemExit


def failed_images(engine) -> float:
    return sample(engine, "nnclr_images_total", model="fake", outcome="failed")


def test_a_pool_without_processes_asks_for_a_retry(make_engine, monkeypatch):
    def refuse(images: list[bytes]) -> list[np.ndarray]:
        raise NotReady("A decoding process cannot be started.")

    encoder = FakeEncoder()
    engine = make_engine(encoder, decode_threads=1)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "prepare_each", refuse)
        with pytest.raises(NotReady):
            engine.run([b"7"])
    assert engine.run([b"7"])[0][0] == 7


@pytest.fixture
def pass_seconds(monkeypatch) -> Callable[[float], None]:
    """Stop the clock by which threads stall, and return a function that advances it: a busy machine causes no fault."""
    now = [0.0]
    monkeypatch.setattr(
        "serving.stages.time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=time.perf_counter)
    )

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_a_thread_that_stalls_is_replaced_and_its_late_result_is_ignored(make_engine, pass_seconds):
    release, returned = threading.Event(), threading.Event()

    def stall():
        pass_seconds(0.3)
        release.wait(120)
        returned.set()

    engine = make_engine(FakeEncoder(forwarding={"endless": stall}), decode_threads=1, stall_s=0.2)
    with pytest.raises(NotReady):
        engine.run([b"endless"])
    until(lambda: engine.fault is None)
    assert engine.run([b"7"])[0][0] == 7
    assert failed_images(engine) == 1
    release.set()
    assert returned.wait(120)
    assert engine.run([b"7"])[0][0] == 7
    assert (failed_images(engine), engine.in_work) == (1, 0)
    assert sample(engine, "nnclr_device_restarts_total", model="fake") == 1


@pytest.mark.usefixtures("pass_seconds")
def test_an_encoder_that_always_fails_is_a_fault_until_it_works_again(make_engine):
    broken = True

    def fail():
        if broken:
            raise RuntimeError("device lost")

    encoder = FakeEncoder()
    encoder.before = fail
    engine = make_engine(encoder, stall_s=0.2)
    for _ in range(3):
        with pytest.raises(ServiceError):
            engine.run([b"7"])
    until(lambda: engine.fault == "the encoder fails on every image")
    until(lambda: len(encoder.batches) > 5)  # failed test images
    assert engine.fault
    broken = False
    until(lambda: engine.fault is None)
    assert engine.run([b"7"])[0][0] == 7


def test_a_stalled_engine_closes_anyway(make_engine):
    release = threading.Event()
    engine = make_engine(FakeEncoder(forwarding={"endless": lambda: release.wait(300)}), stall_s=300)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.run, [b"endless", b"1"])
        until(lambda: engine.in_work == 2)
        engine.close(0.2)  # returns although the thread does not
        assert not release.is_set()
        with pytest.raises(NotReady):
            answer.result(120)
        release.set()


def test_readyz_reports_a_fault_until_it_is_over(server, client, image_files, monkeypatch):
    encoder = server.engine.encoder
    forward, calls, recovered = encoder.forward_crops, [], threading.Event()

    def die_once_and_then_wait(crops):
        calls.append(len(crops))
        if len(calls) == 1:
            raise SystemExit
        recovered.wait(120)
        return forward(crops)

    monkeypatch.setattr(encoder, "forward_crops", die_once_and_then_wait)
    files = {"files": ("a.jpg", image_files[0].read_bytes())}
    for _ in range(2):
        refused = client.post("/api/v1/embed", files=files)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        report = client.get("/readyz")
        assert {report.status_code, client.get("/health").status_code} == {503}
        assert (report.json()["status"], report.json()["detail"]) == ("ill", DIED)
    recovered.set()
    until(lambda: client.get("/readyz").status_code == 200)
    assert client.post("/api/v1/embed", files=files).status_code == 200


# ---- for any mix of images, faults and cancellations, each request is answered exactly once and in order


CAPACITY = 12
GOOD = st.integers(1, 99).map(str)
FAULTY = st.sampled_from(["bad", "crash", "exit", "poison", "deadly", "endless", "sleepy"])


@dataclass(frozen=True)
class Call:
    """A request: its images, where it comes from, and when it is cancelled."""

    words: list[str]
    in_loop: bool
    cancel_after: float | None


CALLS = st.builds(
    Call,
    st.lists(st.one_of(GOOD, GOOD, GOOD, FAULTY), min_size=1, max_size=CAPACITY + 1),
    st.booleans(),
    st.one_of(st.none(), st.none(), st.sampled_from([0.0, 0.005, 0.03, 0.2])),
)


def crash():
    raise ValueError


def sometimes_slow():
    time.sleep(0.01)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(CALLS, min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 5), st.sampled_from([0.0, 2.0]))
def test_every_image_leaves_exactly_once(plan, threads, max_batch, max_wait_ms):
    release = threading.Event()
    encoder = FakeEncoder(
        decoding={"crash": crash, "exit": exit_thread, "sleepy": sometimes_slow},
        forwarding={
            "poison": crash,
            "deadly": exit_thread,
            "endless": lambda: release.wait(5),
            "sleepy": sometimes_slow,
        },
    )
    options = Settings(
        capacity=CAPACITY,
        decode_threads=threads,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        stall_s=0.05,
    )
    engine = Engine(encoder, options, Metrics())

    async def run_all() -> list[object]:
        return await asyncio.gather(*(outcome_of(engine, call) for call in plan))

    outcomes = asyncio.run(run_all())
    for call, outcome in zip(plan, outcomes, strict=True):
        check(call, outcome)
    release.set()
    until_recovered(engine)
    admitted = sum(
        len(call.words)
        for call, outcome in zip(plan, outcomes, strict=True)
        if not isinstance(outcome, Overloaded | RequestTooLarge) and not refused_by_fault(outcome)
    )
    left = [one for metric in engine.metrics.images.collect() for one in metric.samples if one.name.endswith("_total")]
    assert sum(one.value for one in left) == admitted
    results = until_answered(engine, [b"5", b"bad", b"6"])
    assert (results[0][0], type(results[1]), results[2][0]) == (5, ImageError, 6)
    engine.close(1)


async def outcome_of(engine: Engine, call: Call) -> object:
    """The results, or the error; a CancelledError for a cancelled request."""
    images = [f"{word}:{i}".encode() for i, word in enumerate(call.words)]
    if call.in_loop:
        task = asyncio.create_task(engine.run_async(images))
    else:
        task = asyncio.create_task(asyncio.to_thread(engine.run, images))
    if call.in_loop and call.cancel_after is not None:
        await asyncio.sleep(call.cancel_after)
        task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    assert done, "a request was never answered"
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()


def refused_by_fault(outcome: object) -> bool:
    """Return whether the engine had a fault when the request came."""
    return isinstance(outcome, NotReady) and "fault" in str(outcome)


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
        assert isinstance(outcome, ServiceError), outcome


def until_answered(engine: Engine, images: list[bytes]) -> list:
    """Return the results. On a busy machine, any step may take longer than stall_s."""
    while True:
        try:
            return engine.run(images)
        except NotReady:
            until_recovered(engine)


def until_recovered(engine: Engine) -> None:
    until(lambda: not (engine.fault or engine.in_work))


# ---- models: each is loaded once, failures can be retried, and collections find their model


def test_concurrent_callers_load_a_model_once_and_do_not_block_those_of_another(make_engines):
    shelf = Shelf(a=KB, b=KB)
    engines = make_engines(shelf)
    engines.get("a")
    shelf.wait.clear()
    with ThreadPoolExecutor(8) as pool:
        loading = [pool.submit(engines.get, "b") for _ in range(8)]
        until(lambda: shelf.loads == ["a", "b"])
        assert engines.get("a").embed_each([b"1"])[0][0] == 1
        assert asyncio.run(first_number(engines, "a")) == 1
        assert not any(one.done() for one in loading)
        shelf.wait.set()
        assert {one.result().name for one in loading} == {"b"}
    assert shelf.loads == ["a", "b"]
    assert sample(engines, "nnclr_models_loaded") == 2


async def first_number(engines: Engines, source: str) -> float:
    model = await engines.get_async(source)
    return (await model.embed_each_async([b"1"]))[0][0]


def test_a_failed_load_raises_in_all_callers_and_can_be_retried(make_engines):
    shelf = Shelf()
    engines = make_engines(shelf)
    shelf.wait.clear()
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(engines.get, "b") for _ in range(3)]
        until(lambda: shelf.loads == ["b"])
        shelf.wait.set()
        for one in answers:
            with pytest.raises(UnknownModel):
                one.result()
    assert "b" not in engines.served()
    shelf.loads.clear()  # more than one if a caller came after the first failure
    shelf.weights["b"] = KB
    assert asyncio.run(first_number(engines, "b")) == 1
    assert shelf.loads == ["b"]
    assert "b" in engines.served()


def test_after_closing_no_model_works_or_loads(make_engines):
    shelf = Shelf(a=KB, b=KB)
    engines = make_engines(shelf)
    model = engines.get("a")
    shelf.wait.clear()
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(engines.get, "b")
        until(lambda: shelf.loads == ["a", "b"])
        engines.close(0.2)
        shelf.wait.set()
        with pytest.raises(NotReady):
            loading.result()
    with pytest.raises(NotReady):
        model.embed_each([b"1"])
    with pytest.raises(NotReady):
        engines.get("b")


def test_a_collection_finds_its_model_by_fingerprint_and_not_by_name(make_engines, tmp_path):
    shelf = Shelf(a=KB, another=KB, b=KB)
    engines = make_engines(shelf)
    engines.get("a")
    with open_store(str(tmp_path / "store")) as store:
        bench = Workbench(engines, store)
        same = store.create("same", CollectionSpec(2, fingerprint="a", model="/gone/elsewhere"))
        assert bench.embedder_of(same).name == "a"
        assert shelf.loads == ["a"]
        other = store.create("other", CollectionSpec(2, fingerprint="b", model="b"))
        assert bench.embedder_of(other).name == "b"
        lost = store.create("lost", CollectionSpec(2, fingerprint="x", model="/gone/too"))
        with pytest.raises(FingerprintMismatch, match=r"/gone/too.*reembed lost"):
            bench.embedder_of(lost)
        with pytest.raises(FingerprintMismatch):
            bench.embedder_of(same, "b")
