"""MilvusStore: collections in Milvus, on one server or a cluster.

milvus://[user:password@]host:19530[/database]        milvus+tls://host:443?token=TOKEN        milvus://host?M=32

Records of jobs and probes are kept on this machine, in $NNCLR_STATE/host-19530-database/records.sqlite, by default
below ./nnclr-state.

A path that ends in .milvus.db is a file of Milvus Lite, which tests use instead of a server.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnclr_hub.errors import CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import VectorStore
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.milvus import rows
from nnclr_hub.store.milvus.collection import MilvusCollection
from nnclr_hub.store.milvus.connection import SLOW_TIMEOUT, WRITE_TIMEOUT, Connection, decode, encode
from nnclr_hub.store.name_errors import (
    alias_exists,
    alias_not_found,
    collection_exists,
    collection_not_found,
    is_alias,
    is_collection,
    is_own_name,
    replaced_name,
)
from nnclr_hub.store.records import RECORDS, Records
from nnclr_hub.store.reports import CollectionInfo
from nnclr_hub.store.spec import CollectionSpec

DEFAULT_STATE = "nnclr-state"


class MilvusStore(VectorStore):
    """See `store.base.VectorStore`; safe for many threads. For differences see `docs/decisions/0008-milvus.md`.

    Args:
        uri: an address as above. Its parameters M, efConstruction, nlist, m and nbits are those of new indexes.
        read_only: refuse writes.
        shared: keep no records, because several servers use the store.
    """

    def __init__(self, uri: str, *, read_only: bool = False, shared: bool = False) -> None:
        self.read_only = read_only
        self.connection = Connection(str(uri), create=not read_only)
        self.records = records_of(str(uri), self.connection, read_only=read_only or shared)
        self._open: dict[str, MilvusCollection] = {}
        self._names = threading.RLock()

    def __repr__(self) -> str:
        return f"<MilvusStore {self.connection.name!r}{', read-only' * self.read_only}>"

    # ---- collections

    def create(self, name: str, spec: CollectionSpec) -> MilvusCollection:
        check_collection_name(name)
        self.refuse_if_read_only()
        spec = spec.decided(transforms=False)
        schema = rows.schema_of(self.connection, spec)
        with self._names:
            self._refuse_if_taken(name)
            self.connection.call(
                "create_collection",
                encode(name),
                schema=schema,
                consistency_level="Session",
                properties={rows.SPEC_PROPERTY: rows.spec_to_text(spec)},
                timeout=SLOW_TIMEOUT,
            )
            # a crash before the next step is repaired by `get`
            self._open[name] = MilvusCollection(name, spec, self.connection)
            self._open[name].make_ready()
            return self._open[name]

    def get(self, name: str) -> MilvusCollection:
        with self._names:
            collection = self._looked_up(name)
            if self._open.get(collection.name) is not collection:
                collection.make_ready()
                self._open[collection.name] = collection
            return collection

    def drop(self, name: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            aliases = self._require(name)
            for alias in aliases:  # later versions of Milvus refuse to drop a collection with aliases
                self.connection.call("drop_alias", encode(alias), timeout=WRITE_TIMEOUT)
            self.connection.call("drop_collection", encode(name), timeout=WRITE_TIMEOUT)
            self._open.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            self._require(name)
            self._refuse_if_taken(check_collection_name(to))
            self.connection.call("rename_collection", encode(name), encode(to), timeout=WRITE_TIMEOUT)
            if name in self._open:
                self._open[to] = self._open.pop(name)
                self._open[to].name = to
                self._open[to].make_ready()  # Milvus's session has seen nothing under the new name

    def list(self) -> list[CollectionInfo]:
        """Return the state of each collection, by name; changes of the last second may be missing from the counts."""
        infos = []
        for name in self._collections():
            with suppress(CollectionNotFound):  # another client has just dropped it
                infos.append(self._looked_up(name).info())
        return infos

    # ---- aliases

    def alias(self, alias: str, name: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            check_collection_name(alias, "Alias")
            real = self.get(name).name
            if alias in self._collections():
                raise is_collection(alias)
            method = "alter_alias" if alias in self.aliases() else "create_alias"
            self.connection.call(method, encode(real), encode(alias), timeout=WRITE_TIMEOUT)

    def unalias(self, alias: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            known = self.aliases()
            if alias not in known:
                raise alias_not_found(alias, known)
            self.connection.call("drop_alias", encode(alias), timeout=WRITE_TIMEOUT)

    def aliases(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for alias in self.connection.call("list_aliases", "")["aliases"]:  # of all collections
            if (name := decode(alias)) is not None:
                with suppress(CollectionNotFound):  # another client has just removed it
                    found[name] = decode(self.connection.call("describe_alias", alias)["collection_name"]) or ""
        return dict(sorted(found.items()))

    def promote(self, name: str, to: str, finish: Callable[[], None] | None = None) -> str | None:
        """See `VectorStore.promote`. An alias is moved in one step.

        A collection is renamed first, then `name`. In between, and after a crash there, nothing is called `to`.
        """
        self.refuse_if_read_only()
        with self._names:
            real = self.get(name).name
            if check_collection_name(to, "Alias") == real:
                raise is_own_name(real)
            if finish is not None:
                finish()
            known = self.aliases()
            collections = self._collections()
            # the promoted one gives up its name, so `c` and `c.old` can be swapped, and swapped back
            kept = replaced_name(to, {*collections, *known} - {real}) if to in collections else None
            others = [alias for alias, target in known.items() if target == known.get(to, to) and alias != to]
            if kept is None:
                self.alias(to, real)
            else:
                if kept == real:
                    self.rename(real, real := replaced_name(kept, {*collections, *known}))
                self.rename(to, kept)
                self.rename(real, to)
            for alias in others:
                self.alias(alias, to)
            return kept

    # ---- life

    def close(self) -> None:
        """Close the connection."""
        with self._names:
            self._open.clear()
            self.records.close()
            self.connection.close()

    # ---- inside

    def _collections(self) -> list[str]:
        names = (decode(name) for name in self.connection.call("list_collections"))
        return sorted(name for name in names if name is not None)

    def _described(self, name: str) -> dict[str, Any] | None:
        try:
            check_collection_name(name)
            return self.connection.call("describe_collection", encode(name))
        except (InvalidRequest, CollectionNotFound):
            return None

    def _looked_up(self, name: str) -> MilvusCollection:
        described = self._described(name)
        real = decode(described["collection_name"]) if described else None
        if described is None or real is None:
            raise self._not_found(name)
        spec, known = rows.spec_of(described, real), self._open.get(real)
        # another client may have dropped it and created a new one with its name
        if known is not None and known.spec == spec:
            return known
        return MilvusCollection(real, spec, self.connection, read_only=self.read_only)

    def _require(self, name: str) -> list[str]:
        known = self.aliases()
        if name in known:
            raise is_alias(name, known[name])
        if name not in self._collections():
            raise self._not_found(name)
        return [alias for alias, target in known.items() if target == name]

    def _not_found(self, name: str) -> CollectionNotFound:
        return collection_not_found(name, [*self._collections(), *self.aliases()])

    def _refuse_if_taken(self, name: str) -> None:
        described = self._described(name)
        if described is not None:
            raise collection_exists(name) if decode(described["collection_name"]) == name else alias_exists(name)


def records_of(uri: str, connection: Connection, *, read_only: bool) -> Records:
    """Return the records of a file or a server; only one process at a time can write those of a server."""
    if connection.is_file:  # which only one process can open
        return Records(Path(uri).with_suffix(f".{RECORDS}"), read_only=read_only)
    # the connection's name does not contain the password
    folder = re.sub(r"[^A-Za-z0-9.]+", "-", connection.name.partition("://")[2])
    path = Path(os.environ.get("NNCLR_STATE") or DEFAULT_STATE, folder, RECORDS)
    return Records(path, read_only=read_only, locked=True)
