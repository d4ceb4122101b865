"""Makes store_vN.tar.gz, folders as the release of schema N leaves them, and store.json, what they hold.

Every release is given the same items, so store.json does not change.

killed/ is as a kill -9 leaves it, closed/ as a close does.

To be run with the code of that release, once: git checkout RELEASE, then `python tests/store/goldens/make.py 1`.
"""

import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

HERE = Path(__file__).parent
LABELS = ("cat", "dog", "übersee")


def item(n: int, version: int, dim: int) -> Item:
    """Return numbers that every release reads alike: eighths, so that float32 holds them exactly."""
    vector = np.random.default_rng([n, version]).integers(-16, 17, dim) / 8 + 1 / 16
    metadata = {"label": LABELS[n % 3], "n": n, "version": version, "path": f"{LABELS[n % 3]}/{n}.jpg", "none": None}
    return Item(f"i{n:02}", vector.astype(np.float32), metadata, bytes([n, version] * 40) if n % 2 == 0 else None)


def fill(folder: Path) -> dict:
    """Write a store, copies its folder while it is open, closes it, and says what both must hold."""
    store = open_store(str(folder / "closed"))
    expected = {}
    for name, dim, metric in (("photos", 12, "cosine"), ("dots", 6, "dot"), ("distances", 6, "l2")):
        spec = CollectionSpec(dim, metric=metric, fingerprint="f" * 32, model="made-up", indexed=("label", "n"))
        collection = store.create(name, spec)
        held = {}

        def put(numbers, version, dim=dim, collection=collection, held=held):
            made = [item(n, version, dim) for n in numbers]
            collection.upsert(made)
            held |= {one.id: one for one in made}

        def drop(numbers, collection=collection, held=held):
            collection.delete([f"i{n:02}" for n in numbers])
            for n in numbers:
                del held[f"i{n:02}"]

        put(range(20), 1)
        collection.snapshot()
        put(range(5, 9), 2)
        drop([0, 7])
        collection.snapshot()
        put(range(20, 30), 1)  # from here on the log alone knows
        put([3, 25], 2)
        drop([11, 29])
        expected[name] = {
            "spec": {
                "dim": dim,
                "metric": metric,
                "fingerprint": "f" * 32,
                "model": "made-up",
                "indexed": ["label", "n"],
            },
            "seq": collection.info().durable_seq,
            "items": {
                one.id: {
                    "vector": [float(x) for x in one.vector],
                    "metadata": one.metadata,
                    "thumbnail": None if one.thumbnail is None else one.thumbnail.hex(),
                }
                for one in held.values()
            },
        }
    shutil.copytree(folder / "closed", folder / "killed")  # with the write-ahead logs as they stand
    store.close()
    for shared_memory in (folder / "killed").rglob("*-shm"):
        shared_memory.unlink()
    return expected


def main(schema: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        expected = fill(Path(folder))
        (HERE / "store.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1, sort_keys=True))
        with tarfile.open(HERE / f"store_v{schema}.tar.gz", "w:gz") as tar:
            for name in ("killed", "closed"):
                tar.add(Path(folder) / name, name, filter=_nobodys)


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(sys.argv[1])
