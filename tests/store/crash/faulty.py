"""Performs a script on a disk that fails at some moment, and says how the store took it.

python -m store.crash.faulty FOLDER SEED LENGTH

The lines of `store.crash.script`, and when an operation was refused one more: {"refused": class, "sentence", "read":
whether what was acknowledged could be read afterwards; null if the store could not be opened}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from store.crash.content import item_of, version_of
from store.crash.script import Operation, operations, perform, worlds
from store.crash.small import open_small_store
from store.crash.world import World

from nnclr_hub.errors import StoreError
from nnclr_hub.store.base import VectorStore


def _readable(store: VectorStore, before: World, after: World) -> bool:
    """Return whether everything acknowledged can be read; the refused operation may be visible or not."""
    for name in before.collections.keys() & after.collections.keys():
        collection: Any = store.get(name)
        held = {item.id: version_of(item) for item in collection.get(list(before.collections[name]))}
        both = before.collections[name], after.collections[name]
        if any(held.get(id) not in (both[0].get(id), both[1].get(id)) for id in both[0]):
            return False
        for id, version in list(held.items())[:5]:
            if collection.search(item_of(id, version).vector, 1)[0].id != id:
                return False
    return True


def run(folder: str, script: list[Operation]) -> dict[str, Any] | None:
    """Perform the script up to the first refusal, and describe that."""
    foreseen = worlds(script)
    store: VectorStore | None = None
    number = 0
    try:
        store = open_small_store(folder)
        for number, operation in enumerate(script):
            if operation[0] == "reopen":
                closing, store = store, None  # whatever becomes of its last words, it is closed
                closing.close()
                fresh = open_small_store(folder)
                for info in fresh.list():
                    fresh.get(info.name)  # SQLite needs a little room to open it
                store = fresh
            else:
                perform(store, operation)
            _say({"done": number + 1})
    except StoreError as error:
        read = None if store is None else _readable(store, foreseen[number], foreseen[number + 1])
        return {"refused": type(error).__name__, "sentence": str(error), "read": read}
    return None


def _say(words: dict[str, Any]) -> None:
    os.write(1, (json.dumps(words) + "\n").encode())


if __name__ == "__main__":
    said = run(sys.argv[1], operations(int(sys.argv[2]), int(sys.argv[3])))
    if said is not None:
        _say(said)
    os._exit(0)  # as the disk is, nobody could close the store
