"""Edits of metadata by merge patches, for every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidFilter, InvalidRequest, MetadataConflict
from nnclr_hub.plural import counted
from nnclr_hub.store.checks import check_ids, metadata_json
from nnclr_hub.store.items import ById, Item, Where
from nnclr_hub.store.where import Group, parse

Edit = Callable[[str, Mapping[str, Any]], str]  # takes an item's id and metadata, returns the JSON of its new metadata
NOTHING = np.zeros(0, np.float32)


def check_choice(ids: Sequence[str] | None, where: Where | None) -> tuple[list[str] | None, Group | None]:
    """Return the ids without repetitions, or the filter, which must have a condition; exactly one of them."""
    if (ids is None) == (where is None):
        raise InvalidRequest("Choose items either by ids or by where; give exactly one of them.")
    if ids is not None:
        return list(dict.fromkeys(check_ids(ids))), None
    group = parse(where)
    if not any(group.conditions()) and _passes_all(group):  # such as that of a form in which nothing was chosen
        raise InvalidFilter(
            f"The filter {where!r:.80} has no condition, so it selects all items; give it one. To delete a collection "
            "with all its items, drop it: `nnclr store drop NAME`."
        )
    return None, group


def _passes_all(group: Group) -> bool:
    """Return whether a group that consists of groups only passes all items, or else none."""
    must, should, must_not = (map(_passes_all, nodes or ()) for nodes in (group.must, group.should, group.must_not))  # type: ignore[arg-type]
    return all(must) and (group.should is None or any(should)) and not any(must_not)


def editor(patch: Mapping[str, Any], *, replace: bool, keep: Sequence[str] = ()) -> Edit:
    """Return an edit that merges a patch, or sets it as the new metadata; keys in `keep` stay if the item has them."""
    metadata_json(Item("", NOTHING, patch))  # also if no item is found

    def edit(id: str, metadata: Mapping[str, Any]) -> str:
        kept = {key: metadata[key] for key in keep if key in metadata}
        return metadata_json(Item(id, NOTHING, {**(patch if replace else merged(metadata, patch)), **kept}))

    return edit


def each_editor(patches: ById, *, expected: ById | None = None, keep: Sequence[str] = ()) -> Edit:
    """Return an edit with a merge patch for each id, after the shape of `expected` was checked."""
    if not isinstance(patches, Mapping):
        raise InvalidRequest(f"The patches must be an object with ids as its keys, got {patches!r:.80}.")
    check_ids(list(patches))
    edits = {id: editor(patch, replace=False, keep=keep) for id, patch in patches.items()}
    if expected is not None:
        if not isinstance(expected, Mapping) or not all(isinstance(values, Mapping) for values in expected.values()):
            raise InvalidRequest(f"expected must be an object with an object for each id, got {expected!r:.80}.")
        if strangers := [id for id in expected if id not in patches]:
            raise InvalidRequest(f"expected names {strangers[0]!r:.140}, which has no patch; leave it out.")
    return lambda id, metadata: edits[id](id, metadata)


def check_unchanged(expected: ById | None, items: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Compare items, as pairs of id and metadata, with what an edit expects of them."""
    conflicts = {
        id: {key: metadata.get(key) for key in expected[id]}
        for id, metadata in items
        if expected and id in expected and not _matches(dict(metadata), expected[id])
    }
    if conflicts:
        first = next(iter(conflicts))
        raise MetadataConflict(
            f"Nothing was changed, because the metadata of {len(conflicts)} of {counted(len(expected or ()), 'item')} "
            f"differ from what was expected. For example, {first!r} has {conflicts[first]!r:.200}; read them again.",
            conflicts,
        )


def _matches(value: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping):
        inner = {} if value is None else value
        return isinstance(inner, Mapping) and all(_matches(inner.get(key), part) for key, part in expected.items())
    if isinstance(expected, list | tuple):
        return isinstance(value, list) and len(value) == len(expected) and all(map(_matches, value, expected))
    return isinstance(value, bool) == isinstance(expected, bool) and value == expected


def merged(metadata: Any, patch: Any) -> Any:
    """Return metadata after a merge patch (RFC 7396): null removes a key, objects are merged, all else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    made = dict(metadata) if isinstance(metadata, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made
