"""Where a verb of `nnclr store` works: in a store of this machine, or with --server in the collections of a server.

@group.command()
@on_store
def snapshot(name: Name, *, place: Place) -> None:
    with place.opened() as there:
        there.get(name).snapshot()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nnclr_hub.cli.index import connected, result_of
from nnclr_hub.cli.reading import combine_options
from nnclr_hub.cli.verbs import DEFAULT_STORE, ApiKeyEnv, Server, Store, refuse_server_with_local

if TYPE_CHECKING:
    from nnclr_hub.client import Client
    from nnclr_hub.store.base import Progress, VectorStore
    from nnclr_hub.store.reports import CollectionInfo, VerifyReport
    from nnclr_hub.workbench.duplicates import Threshold

_OPTIONS: dict[str, Any] = {"store": Store, "server": Server, "api_key_env": ApiKeyEnv}
_DEFAULTS = {"store": DEFAULT_STORE, "api_key_env": "NNCLR_API_KEY"}


@contextmanager
def opened(uri: str, *, read_only: bool = False) -> Iterator[VectorStore]:
    """Open an existing store; a mistyped name must not create an empty one."""
    from nnclr_hub.store import open_store

    if not read_only and "://" not in uri:
        open_store(uri, read_only=True).close()
    with open_store(uri, read_only=read_only) as store:
        yield store


@dataclass(frozen=True)
class Place:
    """The options --store, --server and --api-key-env as given; not both a store and a server."""

    store: str
    server: str | None
    api_key_env: str

    @property
    def words(self) -> str:
        """The option to append to a command that is to work in the same place."""
        if self.server is not None:
            return f" --server {self.server}"
        return "" if self.store == DEFAULT_STORE else f" --store {self.store}"

    @contextmanager
    def opened(self, *, read_only: bool = False) -> Iterator[VectorStore | ServerStore]:
        """Open the store, or connect to the server; both have the methods that the verbs use."""
        if self.server is None:
            with opened(self.store, read_only=read_only) as store:
                yield store
        else:
            with self.connected() as client:
                yield ServerStore(client)

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """Connect to the server, of which there must be one."""
        assert self.server is not None
        with connected(self.server, self.api_key_env) as client:
            yield client


def on_store(verb: Callable[..., None]) -> Callable[..., None]:
    """Add --store, --server and --api-key-env to a verb, which gets them as `place`."""

    def place(given: dict[str, Any]) -> Place:
        place = Place(**{name: given.pop(name) for name in _OPTIONS})
        refuse_server_with_local(place.server, store=place.store)
        return place

    return combine_options(verb, "place", _OPTIONS, _DEFAULTS, place)


class ServerStore:
    """The collections of a server, with the methods of a local store."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, name: str) -> ServerCollection:
        return ServerCollection(self._client, name)

    def list(self) -> list[CollectionInfo]:
        return self._client.collections.list()

    def drop(self, name: str) -> None:
        self._client.collections.drop(name)

    def aliases(self) -> dict[str, str]:
        return self._client.aliases.list()

    def alias(self, alias: str, name: str) -> None:
        self._client.aliases.point(alias, name)

    def unalias(self, alias: str) -> None:
        self._client.aliases.forget(alias)


class ServerCollection:
    """A collection of a server. Methods that are not below are those of `RemoteCollection`."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._there = client, client.collection(name)

    def __getattr__(self, method: str) -> Any:
        return getattr(self._there, method)

    @cached_property
    def name(self) -> str:
        """The name of the collection, also if it was opened by an alias."""
        return self._there.info().name

    @property
    def spec(self) -> Any:
        return self._there.info().spec

    def update_metadata(self, metadata: Mapping[str, Any], *, keep: object = (), **choice: Any) -> int:
        """Change metadata; the server itself decides which keys stay."""
        return self._there.update_metadata(metadata, **choice)

    def update_each(self, metadata: Mapping[str, Mapping[str, Any]], *, keep: object = (), **condition: Any) -> int:
        return self._there.update_each(metadata, **condition)

    def verify(self, progress: Progress) -> VerifyReport:
        from nnclr_hub.client.collections import read_report

        return read_report(result_of(self._client, self._there.start_verify(), progress))

    def compact(self, progress: Progress) -> None:
        result_of(self._client, self._there.compact(), progress)

    def duplicates(self, threshold: Threshold, *, exact: bool, limit: int, progress: Progress) -> dict[str, Any]:
        """Return what `workbench.duplicates.find_duplicates` returns; the server limits the ids of a group."""
        return result_of(self._client, self._there.duplicates(threshold, exact=exact, limit=limit), progress)

    def reembed(self, model: str, *, progress: Progress, **options: bool) -> dict[str, Any]:
        """Return the fields of `Reembedded`, and how many items were left out, of which the server names some."""
        result = result_of(self._client, self._there.reembed(model, **options), progress)
        return {**result, "left_out": [(one["item"], one["reason"]) for one in result["left_out"]]}
