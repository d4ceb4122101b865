"""A list of operations drawn from a seed: performed by a child that a test kills, foreseen by the test.

NNCLR_FAILPOINT=step:n python -m store.crash.script FOLDER SEED LENGTH

After each operation the child writes a line, `{"done": n, "seqs": {collection: durable_seq}}`, in one system
call: what it contains was acknowledged.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any
from zlib import crc32

from store.crash.content import DIM, item_of
from store.crash.small import open_small_store
from store.crash.world import KEEP, World, backups_of, records_of

from nnclr_hub.store.backup import back_up
from nnclr_hub.store.base import Collection, VectorStore
from nnclr_hub.store.spec import CollectionSpec, IndexName

# (kind, arguments); names and aliases are those in force when it is its turn
Operation = tuple[str, tuple[Any, ...]]
IDS = 60
RECORDS = 11  # one of so many operations writes records
KINDS: tuple[IndexName, ...] = ("hnsw", "flat", "ivf")
COMPARED = ("raw", "whiten")  # "whiten": those with the most items
_WEIGHTS = {
    "upsert": 40,
    "delete": 15,
    "snapshot": 8,
    "compact": 6,
    "reopen": 5,
    "backup": 5,
    "clear": 2,
    "create": 4,
    "drop": 3,
    "alias": 3,
    "rename": 3,
    "promote": 4,
}
_RARE = ("create", "promote", "compact", "drop", "reopen", "snapshot", "backup", "clear")


def operations(seed: int, length: int) -> list[Operation]:
    """Return the script of a seed."""
    rng = random.Random(seed)
    world = World()
    script: list[Operation] = []
    for number in range(length):
        # records depend on nothing else
        operation = ("record", (number,)) if number % RECORDS == RECORDS - 1 else _draw(rng, world, number)
        foresee(world, operation)
        script.append(operation)
    return script


def worlds(script: list[Operation]) -> list[World]:
    """Return the contents before each operation, and at the end."""
    seen = [World()]
    for operation in script:
        seen.append(seen[-1].copy())
        foresee(seen[-1], operation)
    return seen


def foresee(world: World, operation: Operation) -> None:
    """Apply the operation to the model."""
    kind, arguments = operation
    collections, aliases = world.collections, world.aliases
    if kind == "create":
        collections[arguments[0]] = {}
    elif kind == "upsert":
        collections[arguments[0]] |= arguments[1]
    elif kind == "delete":
        for id in arguments[1]:
            collections[arguments[0]].pop(id, None)
    elif kind == "drop":
        del collections[arguments[0]]
        world.aliases = {alias: name for alias, name in aliases.items() if name != arguments[0]}
    elif kind == "clear":
        collections[arguments[0]].clear()
    elif kind == "record":
        world.record = arguments[0]
    elif kind == "backup":
        world.backups = min(KEEP, world.backups + 1)
    elif kind == "alias":
        aliases[arguments[0]] = arguments[1]
    elif kind == "rename":
        _rename(world, *arguments)
    elif kind == "promote":
        name, to = arguments
        # whatever else it went by means the new one as well
        before = aliases.get(to, to)
        world.aliases = {other: name if meant == before else meant for other, meant in aliases.items()}
        if to in collections:
            numbers = ("", *map(str, range(2, 1000)))
            kept = next(old for n in numbers if (old := f"{to}.old{n}") not in collections or old == name)
            _rename(world, name, "")
            _rename(world, to, kept)
            _rename(world, "", to)
        else:
            world.aliases[to] = name


def perform(store: VectorStore, operation: Operation) -> None:
    """Apply the operation to the store; the caller handles "reopen"."""
    kind, arguments = operation
    calls: dict[str, Callable[..., Any]] = {
        "create": lambda name: store.create(name, _spec(name)),
        "upsert": lambda name, versions: store.get(name).upsert([item_of(*one) for one in versions.items()]),
        "delete": lambda name, ids: store.get(name).delete(ids),
        "snapshot": lambda name: store.get(name).snapshot(),
        "compact": lambda name: store.get(name).compact(),
        "clear": lambda name: _clear(store.get(name)),
        "backup": lambda: back_up(store, backups_of(store), keep=KEEP),
        "record": lambda number: store.records.put(*records_of(number)),
        "drop": store.drop,
        "alias": store.alias,
        "rename": store.rename,
        "promote": store.promote,
    }
    calls[kind](*arguments)


def _spec(name: str) -> CollectionSpec:
    return CollectionSpec(DIM, index=KINDS[len(name) % 3], vectors=COMPARED[crc32(name.encode()) % 2])


def _clear(collection: Collection) -> None:
    """Delete everything, and give the space back."""
    collection.delete([f"i{number}" for number in range(IDS)])
    collection.compact()


def run(folder: str, script: list[Operation], answer: int) -> None:
    """Perform the script on a store and acknowledge each operation to a file descriptor."""
    store = open_small_store(folder)
    for number, operation in enumerate(script, 1):
        if operation[0] == "reopen":
            store.close()
            store = open_small_store(folder)
        else:
            perform(store, operation)
        seqs = {info.name: info.durable_seq for info in store.list()}
        os.write(answer, (json.dumps({"done": number, "seqs": seqs}) + "\n").encode())
    store.close()


def _draw(rng: random.Random, world: World, number: int) -> Operation:
    names = sorted(world.collections)
    if not names:
        return "create", ("c0",)
    # every script has some of the rare ones
    rare = _RARE[number // 5 % len(_RARE)] if number % 5 == 4 else None
    kind = rare or rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    name = rng.choice(names)
    if kind == "upsert":
        ids = [f"i{rng.randrange(IDS)}" for _ in range(rng.choice((1, 1, 3, 12)))]
        return kind, (name, dict.fromkeys(ids, number))
    if kind == "delete":
        return kind, (name, [f"i{rng.randrange(IDS)}" for _ in range(rng.choice((1, 2, 6)))])
    if kind == "drop" and len(names) < 2:
        return "snapshot", (name,)
    if kind == "create" or (kind == "rename" and len(names) > 4):
        return ("create", (f"c{number}",)) if len(names) < 5 else ("compact", (name,))
    if kind == "alias":
        return kind, (rng.choice(("now", "best")), name)
    if kind == "rename":
        return kind, (name, f"r{number}")
    if kind == "promote":
        others = [other for other in names if other != name]
        return kind, (name, rng.choice(["now", *others]))
    return kind, () if kind in ("reopen", "backup") else (name,)


def _rename(world: World, name: str, to: str) -> None:
    world.collections[to] = world.collections.pop(name)
    world.aliases = {alias: to if meant == name else meant for alias, meant in world.aliases.items()}


if __name__ == "__main__":
    run(sys.argv[1], operations(int(sys.argv[2]), int(sys.argv[3])), sys.stdout.fileno())
