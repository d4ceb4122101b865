"""Where a verb of `nnclr store` works: in a store of this machine, or with --server in the collections of a server.

@group.command()
@on_store
def snapshot(name: Name, *, place: Place) -> None:
    with place.opened() as there:
        there.get(name).snapshot()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnclr_hub.cli.index import connected
from nnclr_hub.cli.reading import combine_options
from nnclr_hub.cli.verbs import DEFAULT_STORE, ApiKeyEnv, Server, Store, refuse_server_with_local

if TYPE_CHECKING:
    from nnclr_hub.client import Client
    from nnclr_hub.store.base import VectorStore
    from nnclr_hub.workbench import Workbench

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
    def opened(self, *, read_only: bool = False) -> Iterator[VectorStore]:
        """Open the store, or connect to the server."""
        if self.server is None:
            with opened(self.store, read_only=read_only) as store:
                yield store
        else:
            with self.connected() as client:
                yield client.store

    @contextmanager
    def bench(self, model: str | None = None, *, read_only: bool = False) -> Iterator[Workbench | Client]:
        """Open the store with the encoders of this machine, or connect to the server."""
        if self.server is not None:
            with self.connected() as client:
                yield client
            return
        from nnclr_hub.workbench import Encoders, Workbench

        with opened(self.store, read_only=read_only) as store:
            yield Workbench(Encoders(model), store)

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
