"""Client and AsyncClient: the same verbs, blocking and awaited.

Each verb is a function of a module of this package, with its signature and docstring. The verbs are listed once, here,
for both clients.
"""

from __future__ import annotations

from typing import Self

from nnclr_hub.client import collections, imports, jobs, kept_inspections, models, probes, searches, uploads
from nnclr_hub.client.retry import Policy
from nnclr_hub.client.transport import Address, AsyncDriver, SyncDriver
from nnclr_hub.client.verbs import AsyncVerbs, NamedVerb, SyncVerbs, Verb
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.checks import check_collection_name

TIMEOUT_S = 60.0

# ---- verbs


class _Collection:
    info = NamedVerb(collections.describe)
    upsert = NamedVerb(collections.upsert)
    add_images = NamedVerb(uploads.add_images)
    index_folder = NamedVerb(uploads.index_folder)
    import_file = NamedVerb(imports.import_file)
    abandon_import = NamedVerb(imports.abandon_import)
    delete = NamedVerb(collections.delete)
    update_metadata = NamedVerb(collections.update_metadata)
    update_each = NamedVerb(collections.update_each)
    get = NamedVerb(collections.get)
    facets = NamedVerb(collections.facets)
    change_indexed = NamedVerb(collections.change_indexed)
    thumbnail = NamedVerb(collections.thumbnail)
    thumbnails = NamedVerb(collections.thumbnails)
    count = NamedVerb(collections.count)
    scroll = NamedVerb(collections.scroll)
    search = NamedVerb(searches.search)
    search_batch = NamedVerb(searches.search_batch)
    search_each = NamedVerb(searches.search_each)
    changes = NamedVerb(collections.changes)
    snapshot = NamedVerb(collections.snapshot)
    verify = NamedVerb(collections.verify)
    start_verify = NamedVerb(jobs.verify)
    compact = NamedVerb(jobs.compact)
    duplicates = NamedVerb(jobs.duplicates)
    inspect = NamedVerb(jobs.inspect)
    compare = NamedVerb(jobs.compare)
    inspections = NamedVerb(kept_inspections.numbers)
    inspection = NamedVerb(kept_inspections.get)
    placements = NamedVerb(kept_inspections.placements)
    index_there = NamedVerb(jobs.index_there)
    reembed = NamedVerb(jobs.reembed)
    abandon_reembed = NamedVerb(jobs.abandon_reembed)


class _Collections:
    create = Verb(collections.create)
    get = Verb(collections.describe)
    drop = Verb(collections.drop)
    list = Verb(collections.list_collections)


class _Aliases:
    point = Verb(collections.point_alias)
    list = Verb(collections.list_aliases)
    forget = Verb(collections.forget_alias)


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
    backup = Verb(jobs.backup)


class _Server:
    ready = Verb(models.ready)
    list_models = Verb(models.list_models)
    model = Verb(models.served_model)
    embed = Verb(models.embed)
    embed_each = Verb(models.embed_each)
    attention = Verb(models.attention)


# ---- blocking


class RemoteCollection(SyncVerbs, _Collection):
    """A collection of a server, with the methods of a local one."""


class RemoteCollections(SyncVerbs, _Collections):
    """A server's collections."""


class RemoteAliases(SyncVerbs, _Aliases):
    """Aliases of a server's collections."""


class RemoteProbes(SyncVerbs, _Probes):
    """A server's linear probes."""


class RemoteJobs(SyncVerbs, _Jobs):
    """Background jobs of a server."""


class Client(SyncVerbs, _Server):
    """The verbs of a server. Each blocks until its result is there. Threads may share one client.

    Args:
        timeout: seconds from a call to its result, including retries; uploads wait longer for a busy server.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8000", api_key: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        super().__init__(SyncDriver(Address(url, api_key), Policy(_positive(timeout))))
        self.collections = RemoteCollections(self._driver)
        self.aliases = RemoteAliases(self._driver)
        self.probes = RemoteProbes(self._driver)
        self.jobs = RemoteJobs(self._driver)

    def collection(self, name: str) -> RemoteCollection:
        """Return the collection of that name or alias. The first verb fails if it does not exist."""
        return RemoteCollection(self._driver, check_collection_name(name))

    def close(self) -> None:
        """Close the connections."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# ---- awaited


class AsyncRemoteCollection(AsyncVerbs, _Collection):
    """A collection of a server, with the methods of a local one, awaited."""


class AsyncRemoteCollections(AsyncVerbs, _Collections):
    """A server's collections, awaited."""


class AsyncRemoteAliases(AsyncVerbs, _Aliases):
    """Aliases of a server's collections, awaited."""


class AsyncRemoteProbes(AsyncVerbs, _Probes):
    """A server's linear probes, awaited."""


class AsyncRemoteJobs(AsyncVerbs, _Jobs):
    """Background jobs of a server, awaited."""


class AsyncClient(AsyncVerbs, _Server):
    """The verbs of a server, awaited; for asyncio. The arguments are those of `Client`."""

    def __init__(
        self, url: str = "http://127.0.0.1:8000", api_key: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        super().__init__(AsyncDriver(Address(url, api_key), Policy(_positive(timeout))))
        self.collections = AsyncRemoteCollections(self._driver)
        self.aliases = AsyncRemoteAliases(self._driver)
        self.probes = AsyncRemoteProbes(self._driver)
        self.jobs = AsyncRemoteJobs(self._driver)

    def collection(self, name: str) -> AsyncRemoteCollection:
        """Return the collection of that name or alias. The first verb fails if it does not exist."""
        return AsyncRemoteCollection(self._driver, check_collection_name(name))

    async def close(self) -> None:
        """Close the connections."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def _positive(timeout: float) -> float:
    if not timeout > 0:
        raise InvalidRequest(f"timeout must be greater than 0 seconds, got {timeout}.")
    return timeout
