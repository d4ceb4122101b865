"""RemoteStore: the collections of a server as a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnclr_hub.client.collection import RemoteCollection, read_info, refuse
from nnclr_hub.client.transport import Call, Connection
from nnclr_hub.errors import CollectionNotFound
from nnclr_hub.store.base import VectorStore
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.reports import CollectionInfo
from nnclr_hub.store.spec import CollectionSpec, Compared, IndexName, Metric, Precision

ROOT, ALIASES = "/api/v1/collections", "/api/v1/aliases"


class RemoteCollections:
    """The collections of a server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        name: str,
        *,
        model: str | None = None,
        dim: int | None = None,
        metric: Metric = "cosine",
        indexed: Sequence[str] = ("label",),
        index: IndexName = "auto",
        precision: Precision = "f32",
        vectors: Compared = "auto",
    ) -> CollectionInfo:
        """Create a collection; does nothing if it exists with the same specification.

        Args:
            model: the encoder of its vectors; None: the server's default, or an unknown encoder if `dim` is given.
            dim: length of the vectors, for a collection without a model.
            metric, indexed, index, precision, vectors: see `CollectionSpec`.

        Raises:
            CollectionExists: if it exists with another specification.
        """
        body = {"metric": metric, "indexed": list(indexed), "index": index, "precision": precision, "vectors": vectors}
        body |= {key: value for key, value in (("model", model), ("dim", dim)) if value is not None}
        return self._connection.send(Call("PUT", _path(name), json=body)).read(read_info)

    def get(self, name: str) -> CollectionInfo:
        """Return the collection's specification, size and state."""
        return self._connection.send(Call("GET", _path(name))).read(read_info)

    def drop(self, name: str) -> None:
        """Delete the collection with everything in it."""
        self._connection.send(Call("DELETE", _path(name), gone=CollectionNotFound))

    def list(self) -> list[CollectionInfo]:
        """Return the info of each collection, by name."""
        return self._connection.send(Call("GET", ROOT)).read(lambda body: list(map(read_info, body["collections"])))


class RemoteAliases:
    """Aliases of the collections of a server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def point(self, alias: str, collection: str) -> None:
        """Point an alias to a collection, atomically, whatever it pointed to before."""
        self._connection.send(Call("PUT", _alias_path(alias), json={"collection": collection}))

    def list(self) -> dict[str, str]:
        """Return the names of collections by alias."""
        answer = self._connection.send(Call("GET", ALIASES))
        return answer.read(lambda body: {one["alias"]: one["collection"] for one in body["aliases"]})

    def forget(self, alias: str) -> None:
        """Delete an alias; its collection stays."""
        self._connection.send(Call("DELETE", _alias_path(alias), gone=CollectionNotFound))


class RemoteStore(VectorStore):
    """The collections and aliases of a server. Records, renaming and promotion stay with the server."""

    read_only = False  # the server refuses writes itself

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._collections, self._aliases = RemoteCollections(connection), RemoteAliases(connection)

    @property
    def records(self) -> Any:  # type: ignore[override]
        """Raise InvalidRequest: a server keeps its jobs and probes itself."""
        refuse("jobs and probes are read by `Client.jobs` and `Client.probes`")

    def create(self, name: str, spec: CollectionSpec) -> RemoteCollection:
        """Create an empty collection, for the model of the server that the spec names, if it names one."""
        self.refuse_taken(name)  # the server itself accepts the same specification again
        bound: dict[str, Any] = {"model": spec.model} if spec.model else {"dim": spec.dim}
        self._collections.create(
            name,
            **bound,
            metric=spec.metric,
            indexed=spec.indexed,
            index=spec.index,
            precision=spec.precision,
            vectors=spec.vectors,
        )
        return self.get(name)

    def get(self, name: str) -> RemoteCollection:
        """Return the collection with that name or alias."""
        info = self._collections.get(name)
        collection = RemoteCollection(self._connection, info.name)
        collection.spec = info.spec
        return collection

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it, and its aliases."""
        self._collections.drop(name)

    def list(self) -> list[CollectionInfo]:
        """Return the state of each collection, by name."""
        return self._collections.list()

    def names(self) -> Sequence[str]:
        """Return the names of the collections, sorted."""
        return [info.name for info in self.list()]

    def alias(self, alias: str, name: str) -> None:
        """Point an alias to a collection, whatever it pointed to before."""
        self._aliases.point(alias, name)

    def unalias(self, alias: str) -> None:
        """Remove an alias."""
        self._aliases.forget(alias)

    def aliases(self) -> dict[str, str]:
        """Return the names of collections by alias."""
        return self._aliases.list()

    def rename(self, name: str, to: str) -> None:
        """Raise InvalidRequest: REST has no route for it."""
        refuse("rename a collection with `nnclr store rename` on the machine of the server")

    def promote(self, name: str, to: str, finish: Callable[[], None] | None = None) -> str | None:
        """Raise InvalidRequest: only a re-embedding of the server itself replaces a collection."""
        refuse("point an alias to the collection instead")

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()


def _path(name: str) -> str:
    return f"{ROOT}/{check_collection_name(name)}"


def _alias_path(alias: str) -> str:
    return f"{ALIASES}/{check_collection_name(alias, 'Alias')}"
