"""MilvusStore: collections in Milvus, on one server or a cluster.

milvus://[user:password@]host:19530[/database]        milvus+tls://host:443?token=TOKEN        milvus://host?M=32

Records of jobs and probes are kept on this machine, in $NNCLR_STATE/host-19530-database/records.sqlite, by default
below ./nnclr-state.

A path that ends in .milvus.db is a file of Milvus Lite, which tests use instead of a server.
"""

from __future__ import annotations

import json
import os
import re
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from nnclr_hub.arguments import checked
from nnclr_hub.errors import CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import VectorStore, is_alias
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.store.milvus import rows
from nnclr_hub.store.milvus.collection import MilvusCollection
from nnclr_hub.store.milvus.connection import SLOW_TIMEOUT, WRITE_TIMEOUT, Connection, decode, encode
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

    @checked
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
            self.refuse_taken(name)
            properties = {rows.SPEC_PROPERTY: json.dumps({**asdict(spec), "format": rows.FORMAT})}
            options = {"schema": schema, "consistency_level": "Session", "properties": properties}
            self.connection.call("create_collection", encode(name), timeout=SLOW_TIMEOUT, **options)
            return self.get(name)  # which makes the index, also after a crash before

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
            for alias in self._aliases_of(name):  # later versions of Milvus refuse to drop a collection with aliases
                self._write("drop_alias", alias)
            self._write("drop_collection", name)
            self._open.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            self._aliases_of(name)
            self.refuse_taken(to)
            self._write("rename_collection", name, to)
            if name in self._open:
                self._open[to] = self._open.pop(name)
                self._open[to].name = to
                self._open[to].make_ready()  # Milvus's session has seen nothing under the new name

    def list(self) -> list[CollectionInfo]:
        """Return the state of each collection, by name; changes of the last second may be missing from the counts."""
        infos = []
        for name in self.names():
            with suppress(CollectionNotFound):  # another client has just dropped it
                infos.append(self._looked_up(name).info())
        return infos

    # ---- aliases

    def alias(self, alias: str, name: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            name = self.get(name).name
            self.check_alias(alias)
            self._write("alter_alias" if alias in self.aliases() else "create_alias", name, alias)

    def unalias(self, alias: str) -> None:
        self.refuse_if_read_only()
        with self._names:
            self.require_alias(alias)
            self._write("drop_alias", alias)

    def aliases(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for alias in self.connection.call("list_aliases", "")["aliases"]:  # those of all collections
            if (name := decode(alias)) is not None:
                with suppress(CollectionNotFound):  # another client has just removed it
                    found[name] = decode(self.connection.call("describe_alias", alias)["collection_name"]) or ""
        return dict(sorted(found.items()))

    # ---- life

    def close(self) -> None:
        with self._names:
            self._open.clear()
            self.records.close()
            self.connection.close()

    # ---- inside

    def names(self) -> list[str]:
        names = (decode(name) for name in self.connection.call("list_collections"))
        return sorted(name for name in names if name is not None)

    def _write(self, method: str, *names: str) -> None:
        self.connection.call(method, *map(encode, names), timeout=WRITE_TIMEOUT)

    def _looked_up(self, name: str) -> MilvusCollection:
        try:
            described = self.connection.call("describe_collection", encode(check_collection_name(name)))
        except (InvalidRequest, CollectionNotFound):
            raise self.not_found(name) from None
        if (real := decode(described["collection_name"])) is None:
            raise self.not_found(name)
        spec, known = rows.spec_of(described, real), self._open.get(real)
        # another client may have dropped it and created a new one with its name
        if known is not None and known.spec == spec:
            return known
        return MilvusCollection(real, spec, self.connection, read_only=self.read_only)

    def _aliases_of(self, name: str) -> list[str]:
        """Return the aliases of a collection; raise InvalidRequest for the name of an alias."""
        known = self.aliases()
        if name in known:
            raise is_alias(name, known[name])
        if name not in self.names():
            raise self.not_found(name)
        return [alias for alias, target in known.items() if target == name]


def records_of(uri: str, connection: Connection, *, read_only: bool) -> Records:
    """Return the records of a file or a server; only one process at a time can write those of a server."""
    if connection.is_file:  # which only one process can open
        return Records(Path(uri).with_suffix(f".{RECORDS}"), read_only=read_only)
    # the connection's name does not contain the password
    folder = re.sub(r"[^A-Za-z0-9.]+", "-", connection.name.partition("://")[2])
    path = Path(os.environ.get("NNCLR_STATE") or DEFAULT_STATE, folder, RECORDS)
    return Records(path, read_only=read_only, locked=True)
