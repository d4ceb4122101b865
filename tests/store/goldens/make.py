"""Makes store_vN.tar.gz, folders as the release of schema N leaves them. Every release is given the same items.

killed/ is as a kill -9 leaves it, closed/ as a close does.

To be run with the code of that release, once: git checkout RELEASE, then `python tests/store/goldens/make.py 1`.
"""

import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

HERE = Path(__file__).parent
LABELS = ("cat", "dog", "übersee")
SPECS = {
    name: CollectionSpec(dim, metric=metric, fingerprint="f" * 32, model="made-up", indexed=("label", "n"))
    for name, dim, metric in (("photos", 12, "cosine"), ("dots", 6, "dot"), ("distances", 6, "l2"))
}
LAST_CHANGE = 46  # of each collection


def item(n: int, version: int, dim: int) -> Item:
    """Return numbers that every release reads alike: eighths, so that float32 holds them exactly."""
    vector = np.random.default_rng([n, version]).integers(-16, 17, dim) / 8 + 1 / 16
    metadata = {"label": LABELS[n % 3], "n": n, "version": version, "path": f"{LABELS[n % 3]}/{n}.jpg", "none": None}
    return Item(f"i{n:02}", vector.astype(np.float32), metadata, bytes([n, version] * 40) if n % 2 == 0 else None)


def writes(dim: int) -> Iterator[list[Item] | list[str] | None]:
    """Yield what is done to a collection: items to put, ids to delete, or None for a snapshot."""
    yield [item(n, 1, dim) for n in range(20)]
    yield None
    yield [item(n, 2, dim) for n in range(5, 9)]
    yield ["i00", "i07"]
    yield None
    yield [item(n, 1, dim) for n in range(20, 30)]  # from here on the log alone knows
    yield [item(n, 2, dim) for n in (3, 25)]
    yield ["i11", "i29"]


def written(dim: int) -> dict[str, Item]:
    """Return what a collection holds after all writes, by id."""
    held: dict[str, Item] = {}
    for write in writes(dim):
        for one in write or ():
            if isinstance(one, Item):
                held[one.id] = one
            else:
                del held[one]
    return held


def fill(folder: Path) -> None:
    """Write a store, copy its folder while it is open, and close it."""
    store = open_store(str(folder / "closed"))
    for name, spec in SPECS.items():
        collection = store.create(name, spec)
        for write in writes(spec.dim):
            if write is None:
                collection.snapshot()
            elif isinstance(write[0], Item):
                collection.upsert(write)
            else:
                collection.delete(write)
        assert collection.info().durable_seq == LAST_CHANGE
    shutil.copytree(folder / "closed", folder / "killed")  # with the write-ahead logs as they stand
    store.close()
    for shared_memory in (folder / "killed").rglob("*-shm"):
        shared_memory.unlink()


def main(schema: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        with tarfile.open(HERE / f"store_v{schema}.tar.gz", "w:gz") as tar:
            for name in ("killed", "closed"):
                tar.add(Path(folder) / name, name, filter=_nobodys)


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(sys.argv[1])
