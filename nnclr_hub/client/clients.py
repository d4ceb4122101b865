"""Client and AsyncClient: the same calls, one that waits and one that is awaited.

Each call is described once, in `embedding`, `looking`, `collections`, `aliases`, `searching`, `uploading`,
`probes` and `jobs`; its signature and docstring are those of the method. The verbs are listed once, here, for both
(`verbs.py`).
"""

from __future__ import annotations

from typing import Self

from nnclr_hub.client import aliases, collections, embedding, jobs, looking, probes, searching, uploading
from nnclr_hub.client.drivers import Awaiting, Blocking
from nnclr_hub.client.http import Address
from nnclr_hub.client.retrying import Policy
from nnclr_hub.client.verbs import Awaited, NamedVerb, Verb, Waiting
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.checks import check_name

TIMEOUT_S = 60.0

# ------------------------------------------------------------------------------ verbs


class _Collection:
    info = NamedVerb(collections.describe)
    upsert = NamedVerb(collections.upsert)
    add_images = NamedVerb(uploading.add_images)
    index_folder = NamedVerb(uploading.index_folder)
    delete = NamedVerb(collections.delete)
    get = NamedVerb(collections.get)
    thumbnail = NamedVerb(collections.thumbnail)
    count = NamedVerb(collections.count)
    scroll = NamedVerb(collections.scroll)
    search = NamedVerb(searching.search)
    search_batch = NamedVerb(searching.search_batch)
    snapshot = NamedVerb(collections.snapshot)
    verify = NamedVerb(collections.verify)
    compact = NamedVerb(jobs.compact)
    duplicates = NamedVerb(jobs.duplicates)
    index_there = NamedVerb(jobs.index_there)
    reembed = NamedVerb(jobs.reembed)


class _Collections:
    create = Verb(collections.create)
    get = Verb(collections.describe)
    drop = Verb(collections.drop)
    list = Verb(collections.list_collections)


class _Aliases:
    point = Verb(aliases.point)
    list = Verb(aliases.list_aliases)
    forget = Verb(aliases.forget)


class _Probes:
    fit = Verb(probes.fit)
    get = Verb(probes.get)
    list = Verb(probes.list_probes)
    delete = Verb(probes.delete)
    predict = Verb(probes.predict)
    export = Verb(probes.export)


class _Jobs:
    get = Verb(jobs.get)
    list = Verb(jobs.list_jobs)
    wait = Verb(jobs.wait)
    cancel = Verb(jobs.cancel)


class _Server:
    ready = Verb(embedding.ready)
    list_models = Verb(embedding.list_models)
    model = Verb(embedding.served_model)
    embed = Verb(embedding.embed)
    embed_each = Verb(embedding.embed_each)
    attention = Verb(looking.attention)


# ------------------------------------------------------------------------------ blocking


class RemoteCollection(Waiting, _Collection):
    """A server's collection, with the verbs of the store's own."""


class RemoteCollections(Waiting, _Collections):
    """A server's collections."""


class RemoteAliases(Waiting, _Aliases):
    """Other names of a server's collections."""


class RemoteProbes(Waiting, _Probes):
    """A server's linear probes."""


class RemoteJobs(Waiting, _Jobs):
    """What a server does in the background."""


class Client(Waiting, _Server):
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


class AsyncRemoteCollection(Awaited, _Collection):
    """A server's collection, with the verbs of the store's own, awaited."""


class AsyncRemoteCollections(Awaited, _Collections):
    """A server's collections, awaited."""


class AsyncRemoteAliases(Awaited, _Aliases):
    """Other names of a server's collections, awaited."""


class AsyncRemoteProbes(Awaited, _Probes):
    """A server's linear probes, awaited."""


class AsyncRemoteJobs(Awaited, _Jobs):
    """What a server does in the background, awaited."""


class AsyncClient(Awaited, _Server):
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
