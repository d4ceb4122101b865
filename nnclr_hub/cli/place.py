"""The options --store, --server and --api-key-env: where a verb works.

@group.command()
@on_store
def snapshot(name: Name, *, place: Place) -> None:
    with place.opened() as store:
        store.get(name).snapshot()
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.cli.reading import combine_options
from nnclr_hub.cli.verbs import DEFAULT_STORE, ApiKeyEnv, Server, Store
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, NotReady, Unauthorized

if TYPE_CHECKING:
    from nnclr_hub.client import Client
    from nnclr_hub.store.base import VectorStore
    from nnclr_hub.workbench import Workbench

START_S = 120.0  # maximum wait for a server that is starting and loads its model
_OPTIONS: dict[str, Any] = {"store": Store, "server": Server, "api_key_env": ApiKeyEnv}
_DEFAULTS = {"store": DEFAULT_STORE, "api_key_env": "NNCLR_API_KEY"}


@dataclass(frozen=True)
class Place:
    """An address, as it was given: a store or a server."""

    store: str
    server: str | None
    api_key_env: str

    @property
    def exists(self) -> bool:
        """Whether there may be a store; only of a folder this is known."""
        return self.server is not None or "://" in self.store or Path(self.store).exists()

    @property
    def words(self) -> str:
        """The option to append to a command that is to work in the same place."""
        if self.server is not None:
            return f" --server {self.server}"
        return "" if self.store == DEFAULT_STORE else f" --store {self.store}"

    @contextmanager
    def bench(
        self, model: str | None = None, backend: str | None = None, *, read_only: bool = False, create: bool = False
    ) -> Iterator[Workbench | Client]:
        """Open the store with the encoders of this machine, or connect to the server.

        Args:
            create: create the store if it does not exist, and delete it if it has no collection at the end. Otherwise
                it must exist, since a mistyped name must not create an empty one.
        """
        from nnclr_hub.client import open_bench
        from nnclr_hub.store import open_store

        if self.server is not None:
            with _explained(self.server, self.api_key_env, os.environ.get(self.api_key_env)) as client:
                yield client
            return
        if not (read_only or create) and "://" not in self.store:
            open_store(self.store, read_only=True).close()
        existed, unused = self.exists, False
        try:
            with open_bench(self.store, model=model, backend=backend, read_only=read_only) as bench:
                try:
                    yield bench
                finally:
                    with suppress(NNCLRHubError):
                        unused = not existed and not bench.store.list()
        finally:
            if unused:
                shutil.rmtree(self.store, ignore_errors=True)

    @contextmanager
    def opened(self, *, read_only: bool = False, create: bool = False) -> Iterator[VectorStore]:
        """Open the store, or that of the server; see `bench`."""
        with self.bench(read_only=read_only, create=create) as bench:
            yield bench.store


def on_store(verb: Callable[..., None]) -> Callable[..., None]:
    """Add --store, --server and --api-key-env to a verb, which gets them as `place`."""

    def place(given: dict[str, Any]) -> Place:
        place = Place(**{name: given.pop(name) for name in _OPTIONS})
        if place.server is not None and place.store != DEFAULT_STORE:
            raise InvalidRequest(f"Give --store {place.store} or --server {place.server}, not both.")
        return place

    return combine_options(verb, "place", _OPTIONS, _DEFAULTS, place)


@contextmanager
def _explained(server: str, variable: str, key: str | None) -> Iterator[Client]:
    """Open a client of a ready server; if the server requires another key, say where to set it."""
    from nnclr_hub.client import Client

    try:
        with Client(server, key) as client:
            if not client.ready() and not client.ready(wait=START_S):
                raise NotReady(f"The server at {server} is not ready; GET /readyz reports why.")
            yield client
    except Unauthorized as error:
        what = "requires an API key" if key is None else f"rejects the API key in {variable}"
        raise Unauthorized(
            f"{server} {what}; set {variable} to the key from its operator, or choose another variable with "
            "--api-key-env."
        ) from error
