"""Read and restore backups in tests."""

from fsspec.core import url_to_fs
from store.crash.small import open_small_store

from nnclr_hub.store.backup import restore


def contents(collection) -> dict:
    ids = [item.id for item in collection.scroll(limit=10_000).items]
    return {one.id: (one.vector.tobytes(), dict(one.metadata), one.thumbnail) for one in collection.get(ids)}


def restored(source, folder, **options) -> dict[str, dict]:
    """Restore to a new folder; return what it holds, by collection."""
    restore(source, folder, **options)
    with open_small_store(folder) as store:
        assert all(store.get(info.name).verify().ok for info in store.list())
        return {info.name: contents(store.get(info.name)) for info in store.list()}


def chunks_at(destination) -> dict[str, int]:
    """Return the sizes of all files of chunks, by their names."""
    files, root = url_to_fs(str(destination))
    found = files.find(f"{root}/chunks", detail=True)
    return {name.rsplit("/", 1)[-1]: info["size"] for name, info in found.items()}
