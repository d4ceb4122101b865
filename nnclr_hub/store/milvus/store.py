"""MilvusStore: collections in Milvus, from a file to a cluster.

milvus://[user:password@]host:19530[/database]    a server: `milvus-lite server`, standalone or distributed
./photos.milvus.db                                a Milvus Lite file, served by this process alone

Records of jobs and probes are kept on this machine:

milvus://host:19530/photos    $NNCLR_STATE/host-19530-photos/records.sqlite, by default in ./nnclr-state
./photos.milvus.db            ./photos.milvus.records.sqlite
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnclr_hub.errors import CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import VectorStore
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.milvus.client import SLOW_TIMEOUT, WRITE_TIMEOUT, Connection
from nnclr_hub.store.milvus.collection import MilvusCollection
from nnclr_hub.store.milvus.maintenance import index_facets, make_ready
from nnclr_hub.store.milvus.names import decode, encode
from nnclr_hub.store.milvus.rows import SPEC_PROPERTY, schema_of, spec_of, spec_to_text
from nnclr_hub.store.name_errors import (
    alias_exists,
    alias_not_found,
    collection_exists,
    collection_not_found,
    is_alias,
    is_collection,
    is_own_name,
)
from nnclr_hub.store.records import RECORDS, Records
from nnclr_hub.store.reports import CollectionInfo
from nnclr_hub.store.spec import CollectionSpec

DEFAULT_STATE = "nnclr-state"


class MilvusStore(VectorStore):
    """See `store.base.VectorStore`; safe for many threads. For differences see `docs/decisions/0008-milvus.md`.

    Args:
        uri: an address or a file, as above; a file is created if it does not exist.
        read_only: refuse writes.
        shared: keep no records, because several servers use the store.

    Raises:
        InvalidRequest: the address is invalid; or read_only, and the file does not exist.
        StoreUnreachable: nothing answers there within ten seconds.
        StoreLocked: another process has the file open.
        MissingDependency: pymilvus is not installed.
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
        if spec.vectors != "raw":
            raise InvalidRequest(
                f"vectors={spec.vectors!r} needs a store in a folder, because Milvus compares the vectors that it "
                "stores; create the collection with vectors='raw'."
            )
        schema = schema_of(self.connection.pymilvus, spec)
        with self._names:
            self._refuse_if_taken(name)
            self.connection.call(
                "create_collection",
                encode(name),
                schema=schema,
                consistency_level="Session",
                properties={SPEC_PROPERTY: spec_to_text(spec)},
                timeout=SLOW_TIMEOUT,
            )
            # after a crash between the two steps, `get` does the second
            make_ready(self.connection, name, spec)
            index_facets(self.connection, name, spec.indexed)
            return self._opened(name, spec)

    def get(self, name: str) -> MilvusCollection:
        """Return the collection with that name or alias.

        Raises:
            CollectionNotFound: it does not exist; the message lists those that do.
            StoreCorrupt, StoreTooNew: another program created it, or another version.
        """
        with self._names:
            described = self._described(name)
            real = decode(described["collection_name"]) if described else None
            if described is None or real is None:
                raise self._not_found(name)
            spec = spec_of(described, real)
            # another client may have dropped it and created a new one with its name
            if real not in self._open or self._open[real].spec != spec:
                make_ready(self.connection, real, spec)
                if not self.read_only:
                    index_facets(self.connection, real, spec.indexed)
                return self._opened(real, spec)
            return self._open[real]

    def drop(self, name: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            self._require(name)
            for alias in self._aliases_of(name):  # later versions of Milvus refuse to drop a collection with aliases
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
                self._open[to].renamed(to)

    def list(self) -> list[CollectionInfo]:
        return [self.get(name).info() for name in self._collections()]

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
            # other clients find collections by name: the client that moves one relies on seeing all their writes
            for opened in self._open.values():
                opened.refresh()

    def unalias(self, alias: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            known = self.aliases()
            if alias not in known:
                raise alias_not_found(alias, known)
            self.connection.call("drop_alias", encode(alias), timeout=WRITE_TIMEOUT)

    def aliases(self) -> dict[str, str]:
        found = {alias: name for name in self._collections() for alias in self._aliases_of(name)}
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
            kept = self._free(f"{to}.old") if to in self._collections() else None
            others = [alias for alias, target in known.items() if target == known.get(to, to) and alias != to]
            if kept is None:
                self.alias(to, real)
            else:
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
        """Return the names of our collections, sorted; those of other programs are left alone."""
        names = (decode(name) for name in self.connection.call("list_collections"))
        return sorted(name for name in names if name is not None)

    def _aliases_of(self, name: str) -> list[str]:
        answer = self.connection.call("list_aliases", encode(name))
        aliases = (decode(alias) for alias in answer.get("aliases", ()))
        return sorted(alias for alias in aliases if alias is not None)

    def _described(self, name: str) -> dict[str, Any] | None:
        """Return Milvus's description of the collection with a name or alias; None if it does not exist."""
        try:
            check_collection_name(name)
            return self.connection.call("describe_collection", encode(name))
        except (InvalidRequest, CollectionNotFound):
            return None

    def _opened(self, name: str, spec: CollectionSpec) -> MilvusCollection:
        self._open[name] = MilvusCollection(name, spec, self.connection, read_only=self.read_only)
        return self._open[name]

    def _require(self, name: str) -> None:
        """Refuse a name that is not a collection's own."""
        known = self.aliases()
        if name in known:
            raise is_alias(name, known[name])
        if name not in self._collections():
            raise self._not_found(name)

    def _not_found(self, name: str) -> CollectionNotFound:
        return collection_not_found(name, [*self._collections(), *self.aliases()])

    def _refuse_if_taken(self, name: str) -> None:
        described = self._described(name)
        if described is None:
            return
        if decode(described["collection_name"]) == name:
            raise collection_exists(name)
        raise alias_exists(name)

    def _free(self, name: str) -> str:
        taken = {*self._collections(), *self.aliases()}
        number = 2
        free = name
        while free in taken:
            free = f"{name}{number}"
            number += 1
        return free


def records_of(uri: str, connection: Connection, *, read_only: bool) -> Records:
    """Return the records of a file or a server; only one process at a time can write those of a server."""
    if connection.is_file:  # which only one process can open
        return Records(Path(uri).with_suffix(f".{RECORDS}"), read_only=read_only)
    # the connection's name does not contain the password
    folder = re.sub(r"[^A-Za-z0-9.]+", "-", connection.name.removeprefix("milvus://"))
    path = Path(os.environ.get("NNCLR_STATE") or DEFAULT_STATE, folder, RECORDS)
    return Records(path, read_only=read_only, locked=True)
