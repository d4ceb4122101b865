"""A verb of the client: written once, it blocks in a Client and is awaited in an AsyncClient.

    class _Jobs:
        get = Verb(jobs.get)

    class RemoteJobs(SyncVerbs, _Jobs): ...
    class AsyncRemoteJobs(AsyncVerbs, _Jobs): ...

`RemoteJobs.get` takes the arguments of `jobs.get` and returns its result; `AsyncRemoteJobs.get` returns a coroutine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from inspect import signature
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from nnclr_hub.client.steps import Steps
from nnclr_hub.client.transport import AsyncDriver, SyncDriver

P = ParamSpec("P")
T = TypeVar("T")


D = TypeVar("D", SyncDriver, AsyncDriver)


class _Verbs(Generic[D]):
    """Base of the classes with verbs.

    name: the first argument of each `NamedVerb`.
    """

    def __init__(self, driver: D, name: str = "") -> None:
        self._driver = driver
        self.name = name

    def __repr__(self) -> str:
        """Return the class, the name and the server; never the API key."""
        parts = [repr(self.name)] if self.name else []
        return f"{type(self).__name__}({', '.join([*parts, repr(self._driver.address.url)])})"


class SyncVerbs(_Verbs[SyncDriver]):
    """Verbs that block."""


class AsyncVerbs(_Verbs[AsyncDriver]):
    """Verbs that are awaited."""


class Verb(Generic[P, T]):
    """A method with the signature and the docstring of the function that makes its steps."""

    def __init__(self, build: Callable[P, Steps[T]]) -> None:
        self._build: Callable[..., Steps[T]] = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: SyncVerbs, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: AsyncVerbs, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: SyncVerbs | AsyncVerbs | None, kind: type) -> Any:
        if owner is None:
            return self
        build = self._of(owner.name)
        method = _blocking(owner._driver, build) if isinstance(owner, SyncVerbs) else _awaited(owner._driver, build)
        method = wraps(self._build)(method)
        method.__signature__ = signature(build)  # type: ignore[attr-defined]
        return method

    def _of(self, name: str) -> Callable[..., Steps[T]]:
        return self._build


class NamedVerb(Verb[P, T]):
    """A verb of an object with a name, which is the first argument of the function."""

    def __init__(self, build: Callable[Concatenate[str, P], Steps[T]]) -> None:
        super().__init__(build)  # type: ignore[arg-type]

    def _of(self, name: str) -> Callable[..., Steps[T]]:
        return partial(self._build, name)


def _blocking(driver: SyncDriver, build: Callable[..., Steps[T]]) -> Callable[..., T]:
    def method(*args: Any, **kwargs: Any) -> T:
        return driver.drive(build(*args, **kwargs))

    return method


def _awaited(driver: AsyncDriver, build: Callable[..., Steps[T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    async def method(*args: Any, **kwargs: Any) -> T:
        return await driver.drive(build(*args, **kwargs))

    return method
