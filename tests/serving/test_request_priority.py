"""On one event loop, requests run before the page's callbacks, and the page still makes progress."""

import asyncio
import random
import resource
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context

import pytest

from serving.request_priority import LOW_PRIORITY, PAUSE_S, TURN_S, PriorityLoop, RequestPriority

SCOPE = {"type": "http", "path": "/api/v1/collections"}
PAGE = {"type": "http", "path": "/ui/gradio_api/queue/data"}
BACKGROUND = "/ui/gradio_api/queue/.*"


def run(main, loop_factory: Callable[[], asyncio.AbstractEventLoop] = PriorityLoop):
    """Run a coroutine on a priority loop."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(asyncio.wait_for(main(), 60))


def low_priority(coroutine):
    """Start a low-priority task."""
    context = copy_context()
    context.run(LOW_PRIORITY.set, True)
    return asyncio.create_task(coroutine, context=context)


async def steps(name, count, order):
    for _ in range(count):
        order.append(name)
        await asyncio.sleep(0)


async def work(seconds, spent):
    """Do steps of 0.1 ms of work, one after the other."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        while time.perf_counter() - begun < 1e-4:
            pass
        spent.append(time.monotonic())
        await asyncio.sleep(0)


def sleeps():
    """Count how often this thread was idle. It never is while a callback may run, even on a busy machine."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


# a paused page gets one TURN_S in each PAUSE_S + TURN_S, and the loop is idle in between
PAUSES = 0.2 / (TURN_S + PAUSE_S)


async def no_message():
    return {"type": "http.disconnect"}


async def nowhere(message):
    pass


def test_ready_callbacks_run_before_the_next_low_priority_one():
    async def main():
        order = []
        await asyncio.gather(*(low_priority(steps("page", 50, order)) for _ in range(4)), steps("request", 50, order))
        return order

    order = run(main)
    while_both = order[: len(order) - order[::-1].index("request")]
    assert order.count("page") == 200
    assert while_both.count("page") <= while_both.count("request") + 4


def test_normal_tasks_alternate_as_on_any_loop():
    async def main():
        order = []
        await asyncio.gather(steps("a", 20, order), steps("b", 20, order))
        return order

    assert run(main) == ["a", "b"] * 20 == run(main, asyncio.new_event_loop)


def test_the_page_pauses_while_a_request_runs():
    async def main():
        page = low_priority(work(60, []))
        await asyncio.sleep(0.02)
        priority, before = RequestPriority(answering(0.6 * PAUSE_S), BACKGROUND), sleeps()
        for _ in range(20):
            await priority(SCOPE, no_message, nowhere)
            await asyncio.sleep(0.004)  # the page runs again
        page.cancel()
        return sleeps() - before

    assert run(main) >= 10  # in most of the twenty requests the loop was idle, although the page had work


def test_an_endless_request_does_not_stop_the_page():
    async def main():
        spent = []
        request = asyncio.create_task(RequestPriority(answering(60), BACKGROUND)(SCOPE, no_message, nowhere))
        await low_priority(work(0.6, spent))
        request.cancel()
        return spent

    spent = run(main)
    share = len(spent) * 1e-4 / 0.6
    assert share > 0.3 * TURN_S / (TURN_S + PAUSE_S)


def test_a_response_that_has_started_does_not_pause_the_page():
    async def main():
        spent = []
        request = asyncio.create_task(RequestPriority(streaming, BACKGROUND)(SCOPE, no_message, nowhere))
        await asyncio.sleep(0.01)
        before = sleeps()
        await low_priority(work(0.2, spent))
        request.cancel()
        return sleeps() - before

    assert run(main) < PAUSES / 3


def test_a_slow_body_does_not_pause_the_page_until_it_is_complete():
    async def main():
        left = [0.1, 0.1]

        async def receive():
            await asyncio.sleep(left.pop())
            return {"type": "http.request", "body": b"x", "more_body": bool(left)}

        async def app(scope, receive, send):
            while (await receive())["more_body"]:
                pass
            marks.append(sleeps())
            await asyncio.sleep(0.2)

        page = low_priority(work(60, []))
        marks.append(sleeps())
        await RequestPriority(app, BACKGROUND)(SCOPE, receive, nowhere)
        marks.append(sleeps())
        page.cancel()

    marks = []
    run(main)
    coming, there = marks[1] - marks[0], marks[2] - marks[1]
    assert coming < PAUSES / 3
    assert there > PAUSES / 3


def test_a_failed_request_does_not_pause_the_page_afterwards():
    async def fail(scope, receive, send):
        raise ValueError("expected")

    async def main():
        for _ in range(3):
            with pytest.raises(ValueError, match="expected"):
                await RequestPriority(fail, BACKGROUND)(SCOPE, no_message, nowhere)
        before = sleeps()
        await low_priority(work(0.2, []))
        return sleeps() - before

    assert run(main) < PAUSES / 3


def test_only_the_page_s_requests_have_low_priority():
    async def main():
        seen = {}

        async def app(scope, receive, send):
            seen[scope["path"]] = LOW_PRIORITY.get()

        for scope in (PAGE, SCOPE):  # in one task: uvicorn starts a pipelined request from within the previous one
            await RequestPriority(app, BACKGROUND)(scope, no_message, nowhere)
        return seen

    assert run(main) == {PAGE["path"]: True, SCOPE["path"]: False}
    assert run(main, asyncio.new_event_loop) == {PAGE["path"]: False, SCOPE["path"]: False}


def test_contexts_errors_and_cancellation_work_as_on_any_loop():
    about = ContextVar("about", default="nothing")

    async def main():
        errors, seen = [], []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        context = copy_context()
        context.run(LOW_PRIORITY.set, True)
        context.run(about.set, "the page")
        loop.call_soon(lambda: seen.append(about.get()), context=context)
        loop.call_soon(lambda: 1 / 0, context=context)
        loop.call_soon(seen.append, "cancelled", context=context).cancel()
        loop.call_soon(seen.append, "after", context=context)
        await asyncio.sleep(0.05)
        return errors, seen

    assert run(main) == (["division by zero"], ["the page", "after"])


@pytest.mark.parametrize("seed", range(5))
def test_locks_queues_and_timeouts_work_across_priorities(seed):
    async def main():
        chosen, queue, lock, log = random.Random(seed), asyncio.Queue(3), asyncio.Lock(), []

        async def produce(number):
            for item in range(20):
                await queue.put((number, item))
                if chosen.random() < 0.3:
                    await asyncio.sleep(chosen.random() * 1e-3)

        async def consume():
            while True:
                number, item = await queue.get()
                async with lock:
                    log.append((number, item))
                    await asyncio.to_thread(time.sleep, 1e-4)
                queue.task_done()

        consumers = [(low_priority if chosen.random() < 0.5 else asyncio.create_task)(consume()) for _ in range(3)]
        producers = [(low_priority if number % 2 else asyncio.create_task)(produce(number)) for number in range(6)]
        await asyncio.gather(*producers)
        await queue.join()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await low_priority(queue.get())
        for consumer in consumers:
            consumer.cancel()
        return {number: [item for who, item in log if who == number] for number in range(6)}

    assert run(main) == {number: list(range(20)) for number in range(6)}


def answering(seconds):
    """Make an app that answers after some seconds."""

    async def app(scope, receive, send):
        await asyncio.sleep(seconds)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    return app


async def streaming(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.sleep(60)
