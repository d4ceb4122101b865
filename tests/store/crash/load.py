"""Mixed load from several threads, until somebody kills it.

python -m store.crash.load FOLDER SEED

Writers own their ids, so each id has one history. Before a request a writer says what it will do and afterwards
that it is done, a line each: {"begin": request, "versions": {id: version or null}} and {"done": request, "seq": n}.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from store.crash.content import DIM, item_of, version_of
from store.crash.small import open_small_store
from store.crash.world import backups_of

from nnclr_hub.errors import CollectionNotFound
from nnclr_hub.store.backup import back_up
from nnclr_hub.store.base import CollectionSpec

WRITERS = 3
IDS = 150
NAME = "c"


def say(**words: Any) -> None:
    """Write one line in one system call, so that threads do not mix lines and a kill leaves complete ones."""
    os.write(sys.stdout.fileno(), (json.dumps(words) + "\n").encode())


def write(collection: Any, writer: int, rng: random.Random, first: int) -> None:
    """Add, replace and delete items forever; versions count up from `first`, and none is used twice."""
    for version in itertools.count(first):
        request = f"{writer}-{version}"
        ids = [f"w{writer}-{n}" for n in rng.sample(range(IDS), rng.choice((1, 1, 2, 20)))]
        if rng.random() < 0.75:
            say(begin=request, versions=dict.fromkeys(ids, version))
            seq = collection.upsert([item_of(id, version) for id in ids])
        else:
            say(begin=request, versions=dict.fromkeys(ids))
            collection.delete(ids)
            seq = 0
        say(done=request, seq=seq)


def read(collection: Any, rng: random.Random) -> None:
    """Search, list and count; every result must be intact."""
    for version in itertools.count():
        probe = item_of(f"w{rng.randrange(WRITERS)}-{rng.randrange(IDS)}", version)
        found = collection.search(probe.vector, 10, {"must": [{"key": "label", "match": "cat"}]})
        assert all(match.metadata["label"] == "cat" for match in found)
        assert len({match.id for match in found}) == len(found)
        for item in collection.get([match.id for match in found]):
            version_of(item)
        listed = [item.id for item in collection.scroll(limit=100).items]
        assert listed == sorted(set(listed))
        collection.count()


def care(collection: Any, back_up_store: Callable[[], Any], rng: random.Random) -> None:
    """Save, compact and back up, again and again; compacting gives deleted space back."""
    while True:
        rng.choice((collection.snapshot, collection.snapshot, collection.compact, back_up_store))()
        time.sleep(rng.uniform(0, 0.05))


def _forever(work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except BaseException:  # noqa: BLE001 - any failure of any thread fails the test
        traceback.print_exc()
        os._exit(1)


def main(folder: str, seed: int) -> None:
    store = open_small_store(folder)
    try:
        collection = store.get(NAME)
    except CollectionNotFound:
        collection = store.create(NAME, CollectionSpec(DIM, index="hnsw"))
    backing = partial(back_up, store, backups_of(store), keep=3)
    first = 1_000_000 * (seed + 1)
    jobs: list[tuple[Any, ...]] = [(write, collection, w, random.Random(f"{seed}{w}"), first) for w in range(WRITERS)]
    jobs += [
        (read, collection, random.Random(f"r{seed}")),
        (care, collection, backing, random.Random(f"c{seed}")),
    ]
    threads = [threading.Thread(target=_forever, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    threads[0].join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
