"""The engine: vectors, batches, permits, timings, and tasks other than embedding."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_encoder import FakeEncoder, busy, first_column, numbers, queued, sample
from waiting import until

from nnclr_hub import ImageError, load_encoder
from nnclr_hub.errors import InvalidRequest, NotReady, Overloaded, RequestTooLarge, ServiceError
from serving.engine import Engine
from serving.settings import Settings
from serving.stages import ImageTask
from serving.telemetry import Timings, current

WORDS = ImageTask(bytes.decode, str.upper)


@pytest.fixture(scope="module")
def real(model):
    made = Engine(load_encoder(model, device="cpu"), Settings(capacity=200, max_batch=8))
    made.warm_up()
    yield made
    made.close()


# ---- vectors


def test_vectors_do_not_depend_on_the_batch(real, model, image_files):
    want = load_encoder(model, device="cpu").embed(image_files)
    np.testing.assert_allclose(real.run(image_files), want, atol=1e-5)
    np.testing.assert_allclose([real.run([one])[0] for one in image_files[:8]], want[:8], atol=1e-5)
    assert real.run([]) == []


def test_each_of_many_callers_gets_its_own_results(real, image_files):
    want = real.run(image_files)
    with ThreadPoolExecutor(60) as pool:
        answers = pool.map(lambda i: real.run([image_files[i], b"garbage", image_files[(i + 1) % 60]]), range(60))
        for i, results in enumerate(answers):
            np.testing.assert_allclose(results[0], want[i], atol=1e-5)
            assert isinstance(results[1], ImageError)
            np.testing.assert_allclose(results[2], want[(i + 1) % 60], atol=1e-5)


# ---- batches


def test_an_idle_device_starts_at_once_and_a_busy_one_fills_its_batches(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    engine = make_engine(encoder)
    with busy(engine, encoder, release), ThreadPoolExecutor(1) as pool:
        late = pool.submit(engine.run, numbers(*range(2, 22)))
        until(lambda: queued(engine) == 20)
        release.set()
        assert first_column(late.result()) == list(range(2, 22))
    assert encoder.batches == [1, 8, 8, 4]


def test_batches_do_not_exceed_the_largest_compiled_size(make_engine):
    encoder, release = FakeEncoder(), threading.Event()
    encoder.backend.buckets = (1, 2, 4)
    engine = make_engine(encoder)
    engine.warm_up()
    assert encoder.batches == [1, 2, 4, 1]
    with busy(engine, encoder, release), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.run, numbers(*range(1, 8)))
        until(lambda: queued(engine) == 7)
        release.set()
        assert first_column(answer.result()) == list(range(1, 8))
    assert encoder.batches[4:] == [1, 4, 3]


def test_a_failed_batch_fails_only_the_request_with_the_bad_image(make_engine):
    encoder, release = FakeEncoder(), threading.Event()

    def fail():
        raise RuntimeError("device-side assert")

    encoder.forwarding["poison"] = fail
    engine = make_engine(encoder)
    with busy(engine, encoder, release), ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(engine.run, numbers(i)) for i in range(1, 7)]
        poisoned = pool.submit(engine.run, [b"poison", *numbers(9)])
        until(lambda: queued(engine) == 8)
        release.set()
        assert [first_column(one.result()) for one in answers] == [[float(i)] for i in range(1, 7)]
        with pytest.raises(ServiceError, match="RuntimeError"):
            poisoned.result()
    assert engine.fault is None
    until(lambda: engine.in_work == 0)


def test_batches_stay_halved_after_the_device_ran_out_of_memory(make_engine):
    encoder, release = FakeEncoder(), threading.Event()

    def at_most_three():
        if encoder.batches[-1] > 3:
            raise MemoryError("CUDA out of memory")

    encoder.forwarding["3"] = at_most_three
    engine = make_engine(encoder)
    with busy(engine, encoder, release), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.run, numbers(*[3] * 8))
        until(lambda: queued(engine) == 8)
        release.set()
        assert first_column(answer.result()) == [3] * 8
    assert encoder.batches == [1, 8, 4, 2, 2, 4, 2, 2]
    assert first_column(engine.run(numbers(*[3] * 9))) == [3] * 9
    assert max(encoder.batches[8:]) <= 2


def test_a_vector_that_is_not_finite_is_an_error(make_engine):
    encoder = FakeEncoder()
    encoder.forward_crops = lambda crops: np.full((len(crops), 2), np.nan, np.float32)
    with pytest.raises(ServiceError, match="NaN"):
        make_engine(encoder).run(numbers(1))


# ---- admission


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


# ---- timings and metrics


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


def test_metrics_count_every_image_once(make_engine):
    engine = make_engine(FakeEncoder())
    engine.run([b"bad", *numbers(1, 2), b"bad", b"bad"])
    for outcome, count in (("embedded", 2), ("broken", 3), ("failed", 0), ("expired", 0), ("cancelled", 0)):
        assert sample(engine, "nnclr_images_total", model="fake", outcome=outcome) == count
    assert sample(engine, "nnclr_stage_seconds_count", stage="decode") == 5
    assert sample(engine, "nnclr_stage_seconds_count", stage="queue") == 2
    assert sample(engine, "nnclr_batch_images_sum", model="fake") == 2
    assert [sample(engine, f"nnclr_{name}_in_work") for name in ("images", "bytes")] == [0, 0]
    assert queued(engine) == 0


# ---- tasks


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
