"""A verb of the client: described once, it waits in a Client and is awaited in an AsyncClient.

    class _Jobs:
        get = Verb(jobs.get)

    class RemoteJobs(Waiting, _Jobs): ...
    class AsyncRemoteJobs(Awaited, _Jobs): ...

`get` of the first takes what `jobs.get` takes and gives its result; of the second, a coroutine of it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from nnclr_hub.client.drivers import Awaiting, Blocking
from nnclr_hub.client.steps import Steps

P = ParamSpec("P")
T = TypeVar("T")


class Waiting:
    """What has verbs that wait.

    name: given to the verbs of what has a name.
    """

    def __init__(self, driver: Blocking, name: str = "") -> None:
        self._driver = driver
        self.name = name


class Awaited:
    """What has verbs that are awaited.

    name: given to the verbs of what has a name.
    """

    def __init__(self, driver: Awaiting, name: str = "") -> None:
        self._driver = driver
        self.name = name


class Verb(Generic[P, T]):
    """See the module; its signature and docstring are those of what describes it.

    Args:
        build: makes the steps.
    """

    def __init__(self, build: Callable[P, Steps[T]]) -> None:
        self._build: Callable[..., Steps[T]] = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Waiting, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: Awaited, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Waiting | Awaited | None, kind: type) -> Any:
        if owner is None:
            return self
        build = self._of(owner.name)
        method = _waits(owner._driver, build) if isinstance(owner, Waiting) else _awaits(owner._driver, build)
        method = wraps(self._build)(method)
        method.__signature__ = signature(build)  # type: ignore[attr-defined]
        return method

    def _of(self, name: str) -> Callable[..., Steps[T]]:
        return self._build


class NamedVerb(Verb[P, T]):
    """A verb of what has a name, which its description takes first."""

    def __init__(self, build: Callable[Concatenate[str, P], Steps[T]]) -> None:
        super().__init__(build)  # type: ignore[arg-type]

    def _of(self, name: str) -> Callable[..., Steps[T]]:
        return partial(self._build, name)


def _waits(driver: Blocking, build: Callable[..., Steps[T]]) -> Callable[..., T]:
    def method(*args: Any, **kwargs: Any) -> T:
        return driver.drive(build(*args, **kwargs))

    return method


def _awaits(driver: Awaiting, build: Callable[..., Steps[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    async def method(*args: Any, **kwargs: Any) -> T:
        return await driver.drive(build(*args, **kwargs))

    return method
