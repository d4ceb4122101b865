"""Client and AsyncClient: the same calls, one that waits and one that is awaited.

Each call is described once, in `embedding`, `collections`, `aliases`, `searching`, `uploading`, `probes` and `jobs`;
its signature and docstring are those of the method.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from nnclr_hub.client import aliases, collections, embedding, jobs, probes, searching, uploading
from nnclr_hub.client.drivers import Awaiting, Blocking
from nnclr_hub.client.http import Address
from nnclr_hub.client.retrying import Policy
from nnclr_hub.client.steps import Steps
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.checks import check_name

P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_S = 60.0


class _Part:
    """Some of a client's verbs."""

    def __init__(self, driver: Blocking) -> None:
        self._driver = driver


class _AsyncPart:
    """Some of an AsyncClient's verbs."""

    def __init__(self, driver: Awaiting) -> None:
        self._driver = driver


class _Named(_Part):
    """Verbs of what has a name."""

    def __init__(self, driver: Blocking, name: str) -> None:
        super().__init__(driver)
        self.name = name


class _AsyncNamed(_AsyncPart):
    """Verbs of what has a name."""

    def __init__(self, driver: Awaiting, name: str) -> None:
        super().__init__(driver)
        self.name = name


def waits(build: Callable[P, Steps[T]]) -> Callable[Concatenate[_Part, P], T]:
    """A method that does what `build` describes."""

    @wraps(build)
    def method(self: _Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._driver.drive(build(*args, **kwargs))

    return method


def awaits(build: Callable[P, Steps[T]]) -> Callable[Concatenate[_AsyncPart, P], Coroutine[Any, Any, T]]:
    """The same, awaited."""

    @wraps(build)
    async def method(self: _AsyncPart, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._driver.drive(build(*args, **kwargs))

    return method


def waits_named(build: Callable[Concatenate[str, P], Steps[T]]) -> Callable[Concatenate[_Named, P], T]:
    """A method that does what `build` describes for a name, which it has itself."""

    @wraps(build)
    def method(self: _Named, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._driver.drive(build(self.name, *args, **kwargs))

    return method


def awaits_named(
    build: Callable[Concatenate[str, P], Steps[T]],
) -> Callable[Concatenate[_AsyncNamed, P], Coroutine[Any, Any, T]]:
    """The same, awaited."""

    @wraps(build)
    async def method(self: _AsyncNamed, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._driver.drive(build(self.name, *args, **kwargs))

    return method


# ------------------------------------------------------------------------------ blocking


class RemoteCollection(_Named):
    """A server's collection, with the verbs of the store's own."""

    info = waits_named(collections.describe)
    upsert = waits_named(collections.upsert)
    add_images = waits_named(uploading.add_images)
    index_folder = waits_named(uploading.index_folder)
    delete = waits_named(collections.delete)
    get = waits_named(collections.get)
    thumbnail = waits_named(collections.thumbnail)
    count = waits_named(collections.count)
    scroll = waits_named(collections.scroll)
    search = waits_named(searching.search)
    search_batch = waits_named(searching.search_batch)
    snapshot = waits_named(collections.snapshot)
    verify = waits_named(collections.verify)
    compact = waits_named(jobs.compact)
    duplicates = waits_named(jobs.duplicates)
    reembed = waits_named(jobs.reembed)


class RemoteCollections(_Part):
    """A server's collections."""

    create = waits(collections.create)
    get = waits(collections.describe)
    drop = waits(collections.drop)
    list = waits(collections.list_collections)


class RemoteAliases(_Part):
    """Other names of a server's collections."""

    point = waits(aliases.point)
    list = waits(aliases.list_aliases)
    forget = waits(aliases.forget)


class RemoteProbes(_Part):
    """A server's linear probes."""

    fit = waits(probes.fit)
    get = waits(probes.get)
    list = waits(probes.list_probes)
    delete = waits(probes.delete)
    predict = waits(probes.predict)
    export = waits(probes.export)


class RemoteJobs(_Part):
    """What a server does in the background."""

    get = waits(jobs.get)
    list = waits(jobs.list_jobs)
    wait = waits(jobs.wait)
    cancel = waits(jobs.cancel)


class Client(_Part):
    """A server's verbs, each of which waits for its result. Threads may share one.

    Args:
        url: where `nnclr serve` listens.
        api_key: if the server asks for one.
        timeout: seconds from a request to its result, all attempts included; uploads wait longer for a busy server.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", api_key: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        super().__init__(Blocking(Address(url, api_key), Policy(_positive(timeout))))
        self.collections = RemoteCollections(self._driver)
        self.aliases = RemoteAliases(self._driver)
        self.probes = RemoteProbes(self._driver)
        self.jobs = RemoteJobs(self._driver)

    ready = waits(embedding.ready)
    list_models = waits(embedding.list_models)
    model = waits(embedding.served_model)
    embed = waits(embedding.embed)
    embed_each = waits(embedding.embed_each)

    def collection(self, name: str) -> RemoteCollection:
        """The collection of that name or alias; whether there is one shows with the first verb."""
        return RemoteCollection(self._driver, check_name(name, "Collection name"))

    def close(self) -> None:
        """Ends the connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# ------------------------------------------------------------------------------ awaited


class AsyncRemoteCollection(_AsyncNamed):
    """A server's collection, with the verbs of the store's own, awaited."""

    info = awaits_named(collections.describe)
    upsert = awaits_named(collections.upsert)
    add_images = awaits_named(uploading.add_images)
    index_folder = awaits_named(uploading.index_folder)
    delete = awaits_named(collections.delete)
    get = awaits_named(collections.get)
    thumbnail = awaits_named(collections.thumbnail)
    count = awaits_named(collections.count)
    scroll = awaits_named(collections.scroll)
    search = awaits_named(searching.search)
    search_batch = awaits_named(searching.search_batch)
    snapshot = awaits_named(collections.snapshot)
    verify = awaits_named(collections.verify)
    compact = awaits_named(jobs.compact)
    duplicates = awaits_named(jobs.duplicates)
    reembed = awaits_named(jobs.reembed)


class AsyncRemoteCollections(_AsyncPart):
    """A server's collections, awaited."""

    create = awaits(collections.create)
    get = awaits(collections.describe)
    drop = awaits(collections.drop)
    list = awaits(collections.list_collections)


class AsyncRemoteAliases(_AsyncPart):
    """Other names of a server's collections, awaited."""

    point = awaits(aliases.point)
    list = awaits(aliases.list_aliases)
    forget = awaits(aliases.forget)


class AsyncRemoteProbes(_AsyncPart):
    """A server's linear probes, awaited."""

    fit = awaits(probes.fit)
    get = awaits(probes.get)
    list = awaits(probes.list_probes)
    delete = awaits(probes.delete)
    predict = awaits(probes.predict)
    export = awaits(probes.export)


class AsyncRemoteJobs(_AsyncPart):
    """What a server does in the background, awaited."""

    get = awaits(jobs.get)
    list = awaits(jobs.list_jobs)
    wait = awaits(jobs.wait)
    cancel = awaits(jobs.cancel)


class AsyncClient(_AsyncPart):
    """A server's verbs, each of which is awaited; for asyncio.

    Args: as of `Client`.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", api_key: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        super().__init__(Awaiting(Address(url, api_key), Policy(_positive(timeout))))
        self.collections = AsyncRemoteCollections(self._driver)
        self.aliases = AsyncRemoteAliases(self._driver)
        self.probes = AsyncRemoteProbes(self._driver)
        self.jobs = AsyncRemoteJobs(self._driver)

    ready = awaits(embedding.ready)
    list_models = awaits(embedding.list_models)
    model = awaits(embedding.served_model)
    embed = awaits(embedding.embed)
    embed_each = awaits(embedding.embed_each)

    def collection(self, name: str) -> AsyncRemoteCollection:
        """The collection of that name or alias; whether there is one shows with the first verb."""
        return AsyncRemoteCollection(self._driver, check_name(name, "Collection name"))

    async def close(self) -> None:
        """Ends the connections."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _positive(timeout: float) -> float:
    if not timeout > 0:
        raise InvalidRequest(f"timeout={timeout} is not possible: give seconds above 0.")
    return timeout
