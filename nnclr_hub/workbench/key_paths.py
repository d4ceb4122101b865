"""Write metadata under the keys by which filters read them: camera.model is that key, or else `model` in `camera`.

patch_of("tom", {"camera": {"model": "X"}}, {"camera.model": "Y"})  # {"camera": {"model": "Y"}}
patch_of("tom", {"camera.model": "X"}, {"camera.model": "Y"})       # {"camera.model": "Y"}
"""

from __future__ import annotations

from collections.abc import Collection as Container
from collections.abc import Iterable, Mapping
from typing import Any

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import ById, Collection
from nnclr_hub.store.where import ABSENT, paths, value_of

AT_ONCE = 1000  # items that are read at a time


def patch_of(
    id: str, metadata: Mapping[str, Any], values: Mapping[str, Any], literal: Container[str] = ()
) -> dict[str, Any]:
    """Return the merge patch that writes values where filters read them: camera.model may be a key, or in `camera`.

    Args:
        id, metadata: of the item.
        values: by key or path.
        literal: keys with a dot that an item without a value gets as they are, see `literal_keys`.
    """
    patch: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(held := value_of(metadata, key), Mapping):
            inner = f", such as {key}.{next(iter(held))}" if held else ""
            raise InvalidRequest(f"The key {key!r} of item {id!r} holds an object; choose a key in it{inner}.")
        ways = paths(key)
        way = (key,) if key in metadata or (held is ABSENT and key in literal) else ways[-1]
        at, inside = patch, metadata
        for step in way[:-1]:
            at, inside = at.setdefault(step, {}), inside.get(step) or {}
            if not isinstance(inside, Mapping):
                raise InvalidRequest(
                    f"The key {step!r} of item {id!r} holds {inside!r:.80}, so {key!r} cannot be written; choose "
                    "another key."
                )
            if not isinstance(at, dict):
                break
        if not isinstance(at, dict) or way[-1] in at:
            raise InvalidRequest(f"{key!r} and another key of item {id!r} are one inside the other; write one of them.")
        at[way[-1]] = value
    return patch


def literal_keys(collection: Collection, keys: Iterable[str]) -> set[str]:
    """Return which keys with a dot the collection has as they are, and not as paths in objects."""
    found: set[str] = set()
    for key in filter(lambda key: len(paths(key)) > 1, keys):
        with_key = {"must": [{"key": key, "exists": True}]}
        found |= {key for item in collection.scroll(None, 1, with_key, with_vector=False).items if key in item.metadata}
    return found


def patches_of(
    collection: Collection, values: ById, expected: ById | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]] | None]:
    """Return merge patches, and what they expect, for values by id and key; see `patch_of`."""
    literal = literal_keys(collection, {key for own in values.values() for key in own})
    patches = {id: dict(own) for id, own in values.items()}
    conditions = None if expected is None else {id: dict(own) for id, own in expected.items()}
    for ids in batches(values, AT_ONCE):
        for item in collection.get(ids):
            for made in (patches, conditions or {}):
                if item.id in made:
                    made[item.id] = patch_of(item.id, item.metadata, made[item.id], literal)
    return patches, conditions
