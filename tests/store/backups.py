"""Read and restore backups in tests."""

from datetime import UTC, datetime

from store.crash.small import open_small_store

from nnclr_hub.store.backup import restore

BACKUP = """
import sys
from store.crash.small import open_small_store
from nnclr_hub.store.backup import back_up
with open_small_store(sys.argv[1]) as store:
    back_up(store, sys.argv[2])
"""


def contents(collection) -> dict:
    ids = [item.id for item in collection.scroll(limit=10_000).items]
    return {one.id: (one.vector.tobytes(), dict(one.metadata), one.thumbnail) for one in collection.get(ids)}


def restored(source, folder, **options) -> dict[str, dict]:
    """Restore to a new folder; return what it holds, by collection."""
    restore(source, folder, **options)
    with open_small_store(folder) as store:
        return {info.name: contents(store.get(info.name)) for info in store.list()}


def at(id: str) -> datetime:
    """Return the time that is the id of a backup."""
    return datetime.strptime(id, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
