"""MilvusStore: collections in Milvus, from a file to a cluster; the address decides.

milvus://[user:password@]host:19530[/database]    a server: `milvus-lite server`, standalone or distributed
./photos.milvus.db                                a Milvus Lite file, served by this process alone
"""

from __future__ import annotations

import threading
from typing import Any, Self

from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest, OpenedForReading
from nnclr_hub.store.base import CollectionInfo
from nnclr_hub.store.checks import check_name
from nnclr_hub.store.milvus.care import make_ready
from nnclr_hub.store.milvus.client import SLOW_TIMEOUT, WRITE_TIMEOUT, Connection
from nnclr_hub.store.milvus.collection import MilvusCollection
from nnclr_hub.store.milvus.local import records_of
from nnclr_hub.store.milvus.names import decode, encode
from nnclr_hub.store.milvus.rows import SPEC_PROPERTY, schema_of, spec_of, spec_to_text
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.succession import SUFFIX, WAS


class MilvusStore:
    """See `store.base.VectorStore`; safe to call from many threads. `docs/decisions/0008-milvus.md` says what differs.

    Args:
        uri: an address or a file, as above; a file is made if it is not there.
        read_only: refuse writes.
        shared: leave the records of a server to whoever has it alone.

    Raises:
        InvalidRequest: no such address is possible; or read_only on a file that is not there.
        StoreUnreachable: nobody answers there, within ten seconds.
        StoreLocked: another process has the file open.
        MissingDependency: pymilvus is not installed.
    """

    def __init__(self, uri: str, *, read_only: bool = False, shared: bool = False) -> None:
        self.read_only = read_only
        self.connection = Connection(str(uri), create=not read_only)
        self.single_writer = self.connection.is_file
        self.records = records_of(str(uri), self.connection, read_only=read_only or shared)
        self._open: dict[str, MilvusCollection] = {}
        self._names = threading.RLock()

    # ---- collections

    def create(self, name: str, spec: CollectionSpec) -> MilvusCollection:
        """A new, empty collection.

        Raises:
            CollectionExists: the name is taken, by a collection or an alias.
            InvalidRequest: it cannot be a name, or Milvus has no such vectors.
        """
        check_name(name, "Collection name")
        self._refuse_if_read_only()
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
            # if a crash comes between, `get` does what is left
            make_ready(self.connection, name, spec)
            return self._opened(name, spec)

    def get(self, name: str) -> MilvusCollection:
        """The collection of that name or alias; between the two steps of `promote`, the one that goes.

        Raises:
            CollectionNotFound: names those that exist.
            StoreCorrupt: it was made by another program.
        """
        with self._names:
            # another client may be between the two steps, and be done before NAME~was is asked for
            described = self._described(name) or self._described(name + WAS) or self._described(name)
            real = decode(described["collection_name"]) if described else None
            if described is None or real is None:
                raise self._not_found(name)
            spec = spec_of(described, real)
            # other clients may have dropped it, and made another of its name
            if real not in self._open or self._open[real].spec != spec:
                make_ready(self.connection, real, spec)
                return self._opened(real, spec)
            return self._open[real]

    def drop(self, name: str) -> None:
        """Deletes a collection with everything in it and the aliases that mean it.

        Raises:
            CollectionNotFound: there is none of that name.
            InvalidRequest: it is an alias.
        """
        self._refuse_if_read_only()
        with self._names:
            self._require(name)
            for alias in self._aliases_of(name):  # later versions of Milvus drop no collection that has one
                self.connection.call("drop_alias", encode(alias), timeout=WRITE_TIMEOUT)
            self.connection.call("drop_collection", encode(name), timeout=WRITE_TIMEOUT)
            self._open.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        """Gives a collection another name; its aliases go with it.

        Raises:
            CollectionNotFound: there is none of that name.
            InvalidRequest: it is an alias, or the other cannot be a name.
            CollectionExists: the other name is taken.
        """
        self._refuse_if_read_only()
        with self._names:
            self._require(name)
            self._refuse_if_taken(check_name(to, "Collection name"))
            self.connection.call("rename_collection", encode(name), encode(to), timeout=WRITE_TIMEOUT)
            if name in self._open:
                self._open[to] = self._open.pop(name)
                self._open[to].renamed(to)

    def list(self) -> list[CollectionInfo]:
        """How each collection stands, by name."""
        return [self.get(name).info() for name in self._collections()]

    # ---- aliases

    def alias(self, alias: str, name: str) -> None:
        """Makes `alias` mean a collection, whatever it meant before.

        Raises:
            CollectionExists: a collection is called so.
            CollectionNotFound: there is no collection `name`.
        """
        self._refuse_if_read_only()
        with self._names:
            check_name(alias, "Alias")
            real = self.get(name).name
            if alias in self._collections():
                raise CollectionExists(f"There is a collection {alias!r}, so it cannot be an alias: take another name.")
            method = "alter_alias" if alias in self.aliases() else "create_alias"
            self.connection.call(method, encode(real), encode(alias), timeout=WRITE_TIMEOUT)
            # other clients go by names where they write: who moves one counts on seeing all that they wrote before
            for opened in self._open.values():
                opened.look_anew()

    def unalias(self, alias: str) -> None:
        """Forgets an alias.

        Raises:
            CollectionNotFound: there is no such alias.
        """
        self._refuse_if_read_only()
        with self._names:
            known = self.aliases()
            if alias not in known:
                hint = f"there are {', '.join(known)}." if known else "there are no aliases."
                raise CollectionNotFound(f"There is no alias {alias!r}: {hint}")
            self.connection.call("drop_alias", encode(alias), timeout=WRITE_TIMEOUT)

    def aliases(self) -> dict[str, str]:
        """Names of collections by alias."""
        found = {alias: name for name in self._collections() for alias in self._aliases_of(name)}
        return dict(sorted(found.items()))

    def promote(self, name: str, alias: str) -> str | None:
        """Makes `alias` mean the collection `name`.

        An alias is moved in one step. If a collection itself is called `alias`, Milvus needs two: the collection gets
        its other name, then the alias is made; in between nothing is called `alias`. After a crash there, the same
        call again does what is left.

        Returns:
            If a collection itself was called `alias`: the name it is kept under now; else None.

        Raises:
            CollectionNotFound: there is no collection `name`.
            InvalidRequest: `alias` cannot be a name, or is the collection's own.
        """
        self._refuse_if_read_only()
        with self._names:
            real = self.get(name).name
            if check_name(alias, "Alias") == real:
                raise InvalidRequest(f"{real!r} is the collection's own name already: promote another one to it.")
            kept, known = None, self.aliases()
            before = known.get(alias)
            if alias in self._collections():
                before = kept = self._free(f"{alias}.old")
                self.rename(alias, kept)
                known = self.aliases()
            self.alias(alias, real)
            for other, meant in known.items():
                if meant == before and other != alias and not other.endswith((SUFFIX, WAS)):
                    self.alias(other, real)
            return kept

    # ---- life

    def close(self) -> None:
        """Ends the connection."""
        with self._names:
            self._open.clear()
            self.records.close()
            self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- inside

    def _collections(self) -> list[str]:
        """Names of our collections, sorted; other people's are not ours to touch."""
        names = (decode(name) for name in self.connection.call("list_collections"))
        return sorted(name for name in names if name is not None)

    def _aliases_of(self, name: str) -> list[str]:
        answer = self.connection.call("list_aliases", encode(name))
        aliases = (decode(alias) for alias in answer.get("aliases", ()))
        return sorted(alias for alias in aliases if alias is not None)

    def _described(self, name: str) -> dict[str, Any] | None:
        """What Milvus says of the collection of a name or alias; None if there is none."""
        try:
            check_name(name, "Collection name")
            return self.connection.call("describe_collection", encode(name))
        except (InvalidRequest, CollectionNotFound):  # what cannot be a name is none
            return None

    def _opened(self, name: str, spec: CollectionSpec) -> MilvusCollection:
        self._open[name] = MilvusCollection(name, spec, self.connection, read_only=self.read_only)
        return self._open[name]

    def _require(self, name: str) -> None:
        """Refuses a name that is no collection's own."""
        known = self.aliases()
        if name in known:
            raise InvalidRequest(f"{name!r} is an alias: name the collection that it means, {known[name]!r}.")
        if name not in self._collections():
            raise self._not_found(name)

    def _not_found(self, name: str) -> CollectionNotFound:
        known = ", ".join([*self._collections(), *self.aliases()])
        hint = f"there are {known}." if known else "the store is empty; index images first."
        return CollectionNotFound(f"There is no collection {name!r}: {hint}")

    def _refuse_if_taken(self, name: str) -> None:
        described = self._described(name)
        if described is None and self._described(name + WAS) is None:
            return
        if described is None or decode(described["collection_name"]) == name:  # None: see `get`
            raise CollectionExists(f"There is a collection {name!r} already: use it, drop it, or take another name.")
        raise CollectionExists(f"There is an alias {name!r} already: take another name, or forget the alias first.")

    def _free(self, name: str) -> str:
        taken = {*self._collections(), *self.aliases()}
        number = 2
        free = name
        while free in taken:
            free = f"{name}{number}"
            number += 1
        return free

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise OpenedForReading
