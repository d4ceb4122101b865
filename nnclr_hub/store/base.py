"""What every store offers: the protocols of collections and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from nnclr_hub.arguments import Checked
from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest, NNCLRHubError, OpenedForReading
from nnclr_hub.html_table import html_table
from nnclr_hub.store.checks import check_collection_name, check_search
from nnclr_hub.store.facets import Facet
from nnclr_hub.store.items import DEFAULTS, ById, Item, Match, Page, Progress, SearchOptions, Where, is_same
from nnclr_hub.store.percentiles import RandomScores, RandomVectors
from nnclr_hub.store.records import Records
from nnclr_hub.store.reports import ChangePage, CollectionInfo, RepairReport, Statistics, VerifyReport
from nnclr_hub.store.spec import CollectionSpec, Embeds

__all__ = [
    "DEFAULTS",
    "ById",
    "Collection",
    "CollectionSpec",
    "Item",
    "Match",
    "Page",
    "Progress",
    "SearchOptions",
    "VectorStore",
    "Where",
]
T = TypeVar("T")


class Collection(Checked, Protocol):
    """A named set of items under one specification.

    Every change is durable when it returns, and is done for all items or for none. Changes raise DiskFull or
    StoreReadOnly if nothing could be written, and InvalidRequest for an invalid item or argument.
    """

    UNCHECKED = ("search_each", "nearest")
    name: str
    spec: CollectionSpec
    random_scores: RandomScores  # for percentiles; each collection makes RandomScores(self)
    takes_thumbnails = True  # with items; else `upsert` refuses items that have one
    keeps_changes = True  # in a log, see `changes`; a collection without one cannot be re-embedded

    def upsert(self, items: Sequence[Item]) -> int:
        """Add items, or replace those with the same ids; return the number of the change."""
        ...

    def delete(self, ids: Sequence[str] | None = None, *, where: Where | None = None) -> int:
        """Delete items by ids, or those that pass a filter; return how many existed."""
        ...

    def update_metadata(
        self,
        metadata: Mapping[str, Any],
        *,
        ids: Sequence[str] | None = None,
        where: Where | None = None,
        replace: bool = False,
        keep: Sequence[str] = (),
    ) -> int:
        """Change the metadata of items; vectors and the index stay. Return how many items were found.

        Args:
            metadata: a merge patch (RFC 7396): null removes a key, objects are merged, other values replace the old.
            ids: those that do not exist are left out.
            where: instead of ids, a filter; it is evaluated in the transaction that changes the items.
            replace: `metadata` replaces all metadata instead.
            keep: keys whose value stays, whatever `metadata` says, in items that have them.
        """
        ...

    def update_each(self, metadata: ById, *, expected: ById | None = None, keep: Sequence[str] = ()) -> int:
        """Change the metadata of items, of each by its own merge patch; see `update_metadata`.

        Args:
            metadata: patches by id; items that do not exist are left out.
            expected: by id, the values that keys of the item must have now; None: the item must not have the key.
                Objects are compared by their expected keys only. MetadataConflict is raised if an item differs. Milvus
                has no transactions: there, a write of another client in between goes unnoticed.
            keep: see `update_metadata`.
        """
        ...

    def delete_unchanged(self, items: Sequence[Item]) -> list[Item]:
        """Delete items that are still as `get` returned them; return the others that still exist, as they are now.

        Milvus has no transactions: there, a write of another client in between goes unnoticed.
        """
        before = {item.id: item for item in items}
        now = self.get(list(before))
        same = [item.id for item in now if is_same(item, before[item.id])]
        if same:
            self.delete(same)
        return [item for item in now if item.id not in set(same)]

    def change_indexed(self, keys: Sequence[str]) -> None:
        """Index these metadata keys and no others. A new filter on another key reads all metadata."""
        ...

    def get(self, ids: Sequence[str]) -> list[Item]:
        """Return the items with these ids that exist, in the order of the ids, with thumbnails."""
        ...

    def count(self, where: Where | None = None) -> int:
        """Return the number of items, or of those that pass the filter."""
        ...

    def facets(
        self, keys: Sequence[str], where: Where | None = None, limit: int = 10, *, bins: int = 10
    ) -> dict[str, Facet]:
        """Return how often the values of 1 to 16 metadata keys or paths occur, by key.

        `limit` bounds the values per key, 1 to 1000, and `bins` is the size of the histogram of numbers, 1 to 100.
        """
        ...

    def scroll(
        self, cursor: str | None = None, limit: int = 100, where: Where | None = None, *, with_vector: bool = True
    ) -> Page:
        """Return a page of items in the order of their ids, without thumbnails.

        Args:
            cursor: cursor of the previous page; None: the first page.
            limit: 1 to 10,000.
            where: only items that pass.
            with_vector: False: items carry an empty vector (0,), which is much faster.
        """
        ...

    def pages(self, where: Where | None = None, *, limit: int = 1000, with_vector: bool = True) -> Iterator[list[Item]]:
        """Yield all items in the order of their ids, in lists of 1 to `limit`; see `scroll`.

        Items may be stored or deleted during the iteration.
        """
        cursor: str | None = None
        while True:
            page = self.scroll(cursor, limit, where, with_vector=with_vector)
            if page.items:
                yield page.items
            cursor = page.cursor
            if cursor is None:
                return

    def read_all(self, limit: int = 1000, *, thumbnails: bool = True) -> Iterator[list[Item]]:
        """Yield all items in the order of their ids, in lists of 1 to `limit`, with or without thumbnails.

        A store in a folder yields the items of one moment. On Milvus, items that are written during the iteration may
        be missing.
        """
        for items in self.pages(limit=limit, with_vector=not thumbnails):
            if found := self.get([item.id for item in items]) if thumbnails else items:  # some may be deleted by now
                yield found

    def search(
        self,
        vector: np.ndarray,
        k: int = 10,
        where: Where | None = None,
        *,
        exact: bool = False,
        score_threshold: float | None = None,
        with_vector: bool = False,
        effort: int | None = None,
        offset: int = 0,
        with_percentile: bool = False,
    ) -> list[Match]:
        """Return the k nearest items, best first, and equally near ones by id; fewer only if fewer exist.

        If more than 1,024 items are as near as the last one (8 on Milvus), any of them are returned.

        Args:
            vector: (D,) float32.
            k: 1 to 10,000.
            where: only items that pass; see `store.where`.
            exact: compare with every item.
            score_threshold: leave out matches that score lower.
            with_vector: matches carry their vectors.
            effort: how far an approximate index searches (efSearch or nprobe); None: the calibrated value.
            offset: how many of the nearest to skip; k + offset is at most 10,000.
            with_percentile: matches carry the percentiles of their scores; see `percentiles`.
        """
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer) or offset < 0:
            raise InvalidRequest(f"offset must be a whole number of at least 0, got {offset!r:.80}.")
        options = SearchOptions(where, exact, score_threshold, with_vector, effort, with_percentile)
        # without an offset, the collection checks k
        return self.search_each([vector], k + offset if offset else k, options)[0][offset:]

    def search_each(
        self, vectors: Sequence[np.ndarray] | np.ndarray, k: int = 10, options: SearchOptions = DEFAULTS
    ) -> list[list[Match]]:
        """Run `search` for each row of vectors (n, D), several at a time, with the options as one object."""
        k = check_search(k, options)
        if not options.with_percentile:
            return self.nearest(vectors, k, options)
        return self.random_scores.with_percentiles(lambda: self.nearest(vectors, k, options))

    def nearest(self, vectors: Sequence[np.ndarray] | np.ndarray, k: int, options: SearchOptions) -> list[list[Match]]:
        """Return the matches of `search_each`, which has checked k and options, without percentiles.

        This is the one search that a back end implements.
        """
        ...

    def percentiles(self, scores: Sequence[float]) -> list[float] | None:
        """Return for each score the share of random pairs of different items that score lower, 0 to 1.

        None is returned for a collection of fewer than 10 different images. See `store.percentiles`.
        """
        return self.random_scores.percentiles(scores)

    def random_vectors(self) -> RandomVectors:
        """Return vectors of random items, for percentiles."""
        ...

    def vector_changes(self) -> tuple[int, ...]:
        """Return counters of which at least one moves by n when n items or their vectors change; for percentiles."""
        ...

    def compared(self, vectors: np.ndarray) -> np.ndarray:
        """Return vectors of items (n, D) float32 as searches compare them now: see `CollectionSpec.vectors`."""
        return vectors

    @property
    def basis(self) -> object:
        """What scores depend on besides the vectors: two searches are comparable if it was the same object at both."""
        return None

    def thumbnail(self, id: str) -> bytes | None:
        """Return the item's JPEG; None if it has none. ItemNotFound is raised if the item does not exist."""
        ...

    def info(self) -> CollectionInfo:
        """Return the state of the collection."""
        ...

    def statistics(self) -> Statistics:
        """Return numbers for monitoring."""
        info = self.info()
        return Statistics(info.count, info.durable_seq, info.indexed_seq, info.index, info.state)

    def check(self, embedder: Embeds) -> None:
        """Raise FingerprintMismatch unless the embedder's vectors belong to this collection."""
        self.spec.check(embedder, self.name, reembeds=self.keeps_changes)

    def changes(self, since: int = 0, limit: int = 1000, *, wait: float = 0.0, log: str | None = None) -> ChangePage:
        """Return what changed after a change; all of a commit is on one page if it has at most `limit` changes.

        ChangesUnavailable is raised if the log does not reach back to `since`, or is not `log`, or the collection was
        restored to an earlier state. Read all items then, and continue after the page's `last` of a call before that.

        Args:
            since: number of a change that is known already; 0: from the first.
            limit: 1 to 10,000.
            wait: seconds to wait for a change if there is none yet.
            log: that of the page that `since` is from. None: do not notice that the collection was created again.
        """
        raise InvalidRequest("Only a store in a folder keeps a log of changes.")

    def snapshot(self) -> None:
        """Write the index to disk now, so that the next start is quick."""
        ...

    def compact(self, progress: Progress = lambda done, total: None) -> None:
        """Rebuild the index without deleted items, while searches and writes continue."""
        ...

    def verify(self, progress: Progress = lambda done, total: None) -> VerifyReport:
        """Read every vector back, and compare the index with an exhaustive search on a sample."""
        ...

    def repair(self, progress: Progress = lambda done, total: None) -> RepairReport:
        """Remove damaged items, keep their metadata in a file, and rebuild the index."""
        ...

    def _repr_html_(self) -> str:
        try:
            info = self.info()
        except NNCLRHubError as error:
            return html_table({"collection": self.name, "state": error})
        model, items = self.spec.model or "unknown", f"{info.count:,}"
        return html_table(
            {"collection": info.name, "items": items, "dim": self.spec.dim, "model": model, "index": info.index}
        )


class VectorStore(Checked, Protocol):
    """Collections by name, and aliases for them; `records` holds jobs, probes and the like.

    Methods raise CollectionNotFound for a name that does not exist, CollectionExists for a new name that a collection
    or an alias has, and InvalidRequest for an invalid name, or for an alias where a collection's own name is needed.
    """

    records: Records
    read_only: bool  # every change raises OpenedForReading

    def create(self, name: str, spec: CollectionSpec) -> Collection:
        """Create an empty collection."""
        ...

    def get(self, name: str) -> Collection:
        """Return the collection with that name or alias."""
        ...

    def write(self, name: str, work: Callable[[Collection], T]) -> T:
        """Return work(collection), where all writes go to the collection that the name means when they are committed.

        If another collection is promoted to the name while work runs, nothing is written to the old one, and work is
        called again with the new one. It should write once. On Milvus, work is called once.
        """
        return work(self.get(name))

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it, and its aliases."""
        ...

    def rename(self, name: str, to: str) -> None:
        """Rename a collection; its aliases follow."""
        ...

    def list(self) -> list[CollectionInfo]:
        """Return the state of each collection, by name."""
        ...

    def statistics(self) -> dict[str, Statistics]:
        """Return numbers for monitoring, of each collection that is open in this process, by name."""
        return {}

    def alias(self, alias: str, name: str) -> None:
        """Point an alias to a collection, whatever it pointed to before."""
        ...

    def unalias(self, alias: str) -> None:
        """Remove an alias."""
        ...

    def aliases(self) -> dict[str, str]:
        """Return the names of collections by alias."""
        ...

    def promote(self, name: str, to: str, finish: Callable[[], None] | None = None) -> str | None:
        """Make `to`, and all aliases of its collection, mean the collection `name`, in one step.

        If a collection itself is called `to`, it becomes `to.old`, `to.old2`, ..., and `name` is renamed to `to`.
        Otherwise `to` becomes an alias. Promoting `to.old` to `to` swaps the two.

        `finish` is called before, while writes to the old collection wait; if it raises, nothing changes. It must not
        write to the old collection. Return the new name of the old collection, if it was called `to` itself.
        """
        raise InvalidRequest("Only a store in a folder replaces a collection; point an alias to the other one instead.")

    def close(self) -> None:
        """Close all collections and release the store."""
        ...

    def refuse_if_read_only(self) -> None:
        """Raise OpenedForReading if the store was opened read-only."""
        if self.read_only:
            raise OpenedForReading

    # ---- for implementations

    def names(self) -> Iterable[str]:
        """Return the names of the collections, sorted."""
        ...

    def refuse_taken(self, name: str) -> None:
        """Raise InvalidRequest for an invalid name, and CollectionExists for one that exists."""
        if check_collection_name(name) in self.names():
            raise collection_exists(name)
        if name in self.aliases():
            raise CollectionExists(f"Alias {name!r} exists already; choose another name, or remove the alias first.")

    def check_alias(self, alias: str) -> None:
        """Raise InvalidRequest for an invalid alias, and CollectionExists for the name of a collection."""
        if check_collection_name(alias, "Alias") in self.names():
            raise CollectionExists(f"{alias!r} is a collection, so it cannot be an alias; choose another name.")

    def require_alias(self, alias: str) -> None:
        """Raise CollectionNotFound unless an alias exists."""
        if alias not in (aliases := self.aliases()):
            hint = f"existing ones: {', '.join(aliases)}." if aliases else "the store has no aliases."
            raise CollectionNotFound(f"Alias {alias!r} does not exist; {hint}")

    def not_found(self, name: str) -> CollectionNotFound:
        """Return the error for a name that does not exist."""
        known = ", ".join([*self.names(), *self.aliases()])
        hint = f"existing ones: {known}." if known else "the store is empty; index images first."
        return CollectionNotFound(f"Collection {name!r:.150} does not exist; {hint}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def collection_exists(name: str) -> CollectionExists:
    """Return the error for the name of an existing collection."""
    return CollectionExists(f"Collection {name!r} exists already; use it, drop it, or choose another name.")


def is_alias(name: str, target: str) -> InvalidRequest:
    """Return the error for an alias where a collection's own name is needed."""
    return InvalidRequest(f"{name!r} is an alias; use the name of its collection, {target!r}.")
