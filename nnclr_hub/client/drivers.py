"""Performs the client's steps: one driver blocks, one awaits."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import httpx

from nnclr_hub.client.http import Address, Deadline, answer_of, request_of, too_late, translated
from nnclr_hub.client.retrying import Policy, answered
from nnclr_hub.client.steps import Answer, Aside, Attempt, Call, Pause, Step, Steps, T, Together
from nnclr_hub.errors import ServiceError


class Blocking:
    """Drives steps in the caller's thread, and what goes together in threads of its own."""

    def __init__(self, address: Address, policy: Policy) -> None:
        self._address, self._policy = address, policy
        self._http = httpx.Client(**address.options())
        self._interrupted = threading.Event()

    def drive(self, steps: Steps[T]) -> T:
        """The steps' result."""
        outcome: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            outcome, error = None, None
            try:
                outcome = self._perform(step)
            except Exception as raised:  # noqa: BLE001 - the steps themselves decide what becomes of it
                error = raised

    def close(self) -> None:
        """Ends the connections."""
        self._http.close()

    def _perform(self, step: Step) -> Any:
        match step:
            case Call():
                return self.drive(answered(step, self._policy))
            case Attempt():
                return self._send(step)
            case Pause():
                if self._interrupted.wait(step.seconds):
                    raise ServiceError("Interrupted while it waited for the server: call again to go on.")
                return None
            case Aside():
                return step.work()
            case Together():
                return self._together(step)

    def _send(self, attempt: Attempt) -> Answer:
        request = request_of(self._http, attempt)
        url = str(request.url.copy_with(query=None))
        deadline = Deadline(attempt.seconds, url)
        with translated(url, attempt.seconds):
            response = self._http.send(request, stream=True)
            try:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    deadline.check()
            finally:
                response.close()
        return answer_of(response, bytes(body))

    def _together(self, step: Together) -> None:
        with ThreadPoolExecutor(len(step.several), thread_name_prefix="nnclr-client") as pool:
            workers = [pool.submit(self.drive, steps) for steps in step.several]
            try:
                wait(workers, return_when=FIRST_EXCEPTION)
            except BaseException:  # Ctrl-C: what is on its way is waited for, what has not begun is not begun
                self._interrupted.set()
                raise
            finally:
                step.stop()
                wait(workers)
                self._interrupted.clear()
        for worker in workers:
            worker.result()


class Awaiting:
    """Drives steps in the running event loop, and what goes together in tasks of its own."""

    def __init__(self, address: Address, policy: Policy) -> None:
        self._address, self._policy = address, policy
        self._http = httpx.AsyncClient(**address.options())

    async def drive(self, steps: Steps[T]) -> T:
        """The steps' result."""
        outcome: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            outcome, error = None, None
            try:
                outcome = await self._perform(step)
            except Exception as raised:  # noqa: BLE001 - the steps themselves decide what becomes of it
                error = raised

    async def close(self) -> None:
        """Ends the connections."""
        await self._http.aclose()

    async def _perform(self, step: Step) -> Any:
        match step:
            case Call():
                return await self.drive(answered(step, self._policy))
            case Attempt():
                return await self._send(step)
            case Pause():
                return await asyncio.sleep(step.seconds)
            case Aside():
                return await asyncio.to_thread(step.work)
            case Together():
                return await self._together(step)

    async def _send(self, attempt: Attempt) -> Answer:
        request = request_of(self._http, attempt)
        url = str(request.url.copy_with(query=None))
        try:
            with translated(url, attempt.seconds):
                async with asyncio.timeout(attempt.seconds):
                    response = await self._http.send(request)
        except TimeoutError as error:
            raise too_late(url, attempt.seconds) from error
        return answer_of(response, response.content)

    async def _together(self, step: Together) -> None:
        tasks = [asyncio.create_task(self.drive(steps)) for steps in step.several]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            step.stop()
            await asyncio.wait(tasks)
        finally:
            step.stop()
            for task in tasks:
                task.cancel()
        for task in tasks:
            task.result()
