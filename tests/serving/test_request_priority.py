"""On one event loop, requests go before the page, and the page still gets on."""

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
BEHIND = "/ui/gradio_api/queue/.*"


def run(main, loop_factory: Callable[[], asyncio.AbstractEventLoop] = PriorityLoop):
    """What a coroutine gives, on a loop of ours."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(asyncio.wait_for(main(), 60))


def aside(coroutine):
    """A task that steps aside."""
    context = copy_context()
    context.run(LOW_PRIORITY.set, True)
    return asyncio.create_task(coroutine, context=context)


async def steps(name, count, order):
    for _ in range(count):
        order.append(name)
        await asyncio.sleep(0)


async def work(seconds, spent):
    """Steps of 0.1 ms of work, one after the other."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.perf_counter()
        while time.perf_counter() - begun < 1e-4:
            pass
        spent.append(time.monotonic())
        await asyncio.sleep(0)


def sleeps():
    """How often this thread had nothing to do: never, while there is a step that may run, however busy the machine."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


# a page that stands still gets one TURN_S in each PAUSE_S + TURN_S, and the loop sleeps in between
HELD_UP = 0.2 / (TURN_S + PAUSE_S)


async def no_message():
    return {"type": "http.disconnect"}


async def nowhere(message):
    pass


def test_what_is_ready_runs_before_the_next_step_that_is_aside():
    async def main():
        order = []
        await asyncio.gather(*(aside(steps("page", 50, order)) for _ in range(4)), steps("request", 50, order))
        return order

    order = run(main)
    while_both = order[: len(order) - order[::-1].index("request")]
    assert order.count("page") == 200
    assert while_both.count("page") <= while_both.count("request") + 4


def test_nobody_steps_aside_unless_told_to():
    async def main():
        order = []
        await asyncio.gather(steps("a", 20, order), steps("b", 20, order))
        return order

    assert run(main) == ["a", "b"] * 20 == run(main, asyncio.new_event_loop)


def test_beside_a_request_the_page_stands_still():
    async def main():
        spent = []
        page = aside(work(0.2, spent))
        await asyncio.sleep(0.02)
        precedence, waited = RequestPriority(answering(0.6 * PAUSE_S), BEHIND), []
        for _ in range(10):
            begun, before = time.monotonic(), len(spent)
            await precedence(SCOPE, no_message, nowhere)
            waited.append((len(spent) - before, time.monotonic() - begun))
            await asyncio.sleep(0.004)
        await page
        return waited, spent

    waited, spent = run(main)
    assert sorted(steps for steps, _ in waited)[7] <= 1  # of the twenty that there were time for
    assert len(spent) > 50  # it worked between the requests and afterwards


def test_a_request_without_an_end_does_not_stop_the_page():
    async def main():
        spent = []
        request = asyncio.create_task(RequestPriority(answering(60), BEHIND)(SCOPE, no_message, nowhere))
        await aside(work(0.6, spent))
        request.cancel()
        return spent

    spent = run(main)
    share = len(spent) * 1e-4 / 0.6
    assert share > 0.3 * TURN_S / (TURN_S + PAUSE_S)


def test_an_answer_that_has_begun_holds_nobody_up():
    async def main():
        spent = []
        request = asyncio.create_task(RequestPriority(streaming, BEHIND)(SCOPE, no_message, nowhere))
        await asyncio.sleep(0.01)
        before = sleeps()
        await aside(work(0.2, spent))
        request.cancel()
        return sleeps() - before

    assert run(main) < HELD_UP / 3


def test_a_body_that_comes_slowly_holds_nobody_up_until_it_is_there():
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

        page = aside(work(60, []))
        marks.append(sleeps())
        await RequestPriority(app, BEHIND)(SCOPE, receive, nowhere)
        marks.append(sleeps())
        page.cancel()

    marks = []
    run(main)
    coming, there = marks[1] - marks[0], marks[2] - marks[1]
    assert coming < HELD_UP / 3
    assert there > HELD_UP / 3


def test_a_request_that_fails_holds_nobody_up_afterwards():
    async def fail(scope, receive, send):
        raise ValueError("as asked")

    async def main():
        for _ in range(3):
            with pytest.raises(ValueError, match="as asked"):
                await RequestPriority(fail, BEHIND)(SCOPE, no_message, nowhere)
        before = sleeps()
        await aside(work(0.2, []))
        return sleeps() - before

    assert run(main) < HELD_UP / 3


def test_the_pages_requests_step_aside_and_others_do_not():
    async def main():
        seen = {}

        async def app(scope, receive, send):
            seen[scope["path"]] = LOW_PRIORITY.get()

        for scope in (PAGE, SCOPE):  # in one task, as uvicorn starts a pipelined request from within the one before
            await RequestPriority(app, BEHIND)(scope, no_message, nowhere)
        return seen

    assert run(main) == {PAGE["path"]: True, SCOPE["path"]: False}
    assert run(main, asyncio.new_event_loop) == {PAGE["path"]: False, SCOPE["path"]: False}


def test_context_errors_and_cancelling_are_as_on_any_loop():
    about = ContextVar("about", default="nothing")

    async def main():
        told, seen = [], []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        context = copy_context()
        context.run(LOW_PRIORITY.set, True)
        context.run(about.set, "the page")
        loop.call_soon(lambda: seen.append(about.get()), context=context)
        loop.call_soon(lambda: 1 / 0, context=context)
        loop.call_soon(seen.append, "cancelled", context=context).cancel()
        loop.call_soon(seen.append, "after", context=context)
        await asyncio.sleep(0.05)
        return told, seen

    assert run(main) == (["division by zero"], ["the page", "after"])


@pytest.mark.parametrize("seed", range(5))
def test_a_program_of_locks_queues_and_timeouts_comes_to_the_same_end(seed):
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

        consumers = [(aside if chosen.random() < 0.5 else asyncio.create_task)(consume()) for _ in range(3)]
        producers = [(aside if number % 2 else asyncio.create_task)(produce(number)) for number in range(6)]
        await asyncio.gather(*producers)
        await queue.join()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await aside(queue.get())
        for consumer in consumers:
            consumer.cancel()
        return {number: [item for who, item in log if who == number] for number in range(6)}

    assert run(main) == {number: list(range(20)) for number in range(6)}


def answering(seconds):
    """An app that answers after so long."""

    async def app(scope, receive, send):
        await asyncio.sleep(seconds)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    return app


async def streaming(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.sleep(60)
