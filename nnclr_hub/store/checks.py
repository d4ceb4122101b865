"""What may go into a store: names, vectors, metadata, thumbnails. Refused by name, in one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import Item
from nnclr_hub.store.spec import CollectionSpec

MAX_K = 10_000
MAX_EFFORT = 100_000
# of a question from outside: all that is found is shown, and somebody waits for it
MAX_ASKED_K = 1000
MAX_ASKED_EFFORT = 10_000
MAX_DEPTH = 100  # of metadata; SQLite's reading of JSON ends at a thousand
LONGEST = 1e18  # of a vector: the square of a distance must fit into float32
UNIT_WITHIN = 1e-6  # of 1, a squared length is that of a unit vector in float32
MAX_LIMIT = 10_000
MAX_METADATA = 64 * 1024
MAX_THUMBNAIL = 32 * 1024
_NAME = re.compile(r"[A-Za-z0-9._~-]{1,128}")
# what contains itself is found by the depth of recursion, which costs nothing
_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, check_circular=False)
# float16 ends here
_LARGEST_F16 = float(np.finfo(np.float16).max)


def check_name(name: str, what: str) -> str:
    """Returns the name of a collection or item if it may be one.

    Raises:
        InvalidRequest: it may not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(
            f"{what} {name!r:.150} is not possible: use 1 to 128 of the characters A-Z a-z 0-9 . _ ~ -"
        )
    return name


def check_asked(k: int, effort: int | None) -> None:
    """Refuses what nobody may ask for from outside, by the command line, REST or the page.

    Raises:
        InvalidRequest: k outside 1 ... 1000, effort outside 1 ... 10,000.
    """
    check_k(k, MAX_ASKED_K)
    check_effort(effort, MAX_ASKED_EFFORT)


def check_k(k: int, most: int = MAX_K) -> int:
    """Returns the number of neighbors if it may be asked for.

    Raises:
        InvalidRequest: it may not.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise InvalidRequest(f"k={k!r} is not possible: ask for 1 to {most} neighbors.")
    return int(k)


def check_ids(ids: Sequence[str]) -> list[str]:
    """Returns a list of item ids if they may be ones.

    Raises:
        InvalidRequest: one may not, or it is a single one, whose letters would be taken for ids.
    """
    if isinstance(ids, str):
        raise InvalidRequest(f"{ids!r:.150} is one id: give a list of ids.")
    return [check_name(id, "Item id") for id in ids]


def check_effort(effort: int | None, most: int = MAX_EFFORT) -> int | None:
    """Returns how far to look if it may be asked for.

    Raises:
        InvalidRequest: it may not.
    """
    if effort is None:
        return None
    if isinstance(effort, bool) or not isinstance(effort, int) or not 1 <= effort <= most:
        raise InvalidRequest(f"effort={effort!r} is not possible: ask for 1 to {most}, or leave it out.")
    return effort


def check_threshold(threshold: float | None) -> float | None:
    """Returns the lowest score to be given if it is one.

    Raises:
        InvalidRequest: it is no number.
    """
    if threshold is None:
        return None
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or threshold != threshold:
        raise InvalidRequest(f"score_threshold={threshold!r} is no number.")
    return threshold


def check_limit(limit: int) -> int:
    """Returns the size of a page if it may be asked for.

    Raises:
        InvalidRequest: it may not.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit={limit!r} is not possible: a page holds 1 to {MAX_LIMIT} items.")
    return limit


def check_vector(vector: np.ndarray, spec: CollectionSpec, what: str) -> np.ndarray:
    """(D,) float32 as the collection compares it: normalized if the metric is cosine.

    Raises:
        InvalidRequest: another length, NaN or infinity, or zero where a direction is needed.
    """
    if _is_row(vector, spec):  # a single query should not pay for what a thousand vectors need
        square = float(np.dot(vector, vector))
        if 1e-12 < square < 1e12 and (spec.precision == "f32" or spec.metric == "cosine"):
            if spec.metric != "cosine" or abs(square - 1) < UNIT_WITHIN:
                return vector
            return vector / np.float32(np.sqrt(square))
    return check_vectors([vector], spec, lambda _: what)[0]


def check_vectors(vectors: Sequence[np.ndarray] | np.ndarray, spec: CollectionSpec, what: Any) -> np.ndarray:
    """(n, D) float32, each row as `check_vector` has it, but all in one go.

    Args:
        vectors: n vectors of D numbers.
        what: called with a row's number, says which vector it is, for the sentence.

    Raises:
        InvalidRequest: as `check_vector`, of the first row that is not possible.
    """
    try:
        none = len(vectors) == 0
    except TypeError as error:
        raise InvalidRequest(f"Vectors come as an array (n, {spec.dim}); got {vectors!r:.80}.") from error
    if none:
        return np.zeros((0, spec.dim), np.float32)
    rows = _stacked(vectors, spec, what)
    largest = _LARGEST_F16 if spec.precision == "f16" and spec.metric != "cosine" else np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    # one look at the sums finds NaN and infinity; only then is it worth finding out where
    if not np.isfinite(squares).all():
        _refuse_row(~np.isfinite(rows).all(axis=1), what, "holds NaN or infinity")
    if largest < np.inf:
        _refuse_row((np.abs(rows) > largest).any(axis=1), what, f"holds a number beyond {largest:.0f}, the last of f16")
    if spec.metric != "cosine":
        _refuse_row(squares > LONGEST**2, what, f"is longer than {LONGEST:.0e}, so that its scores would be infinite")
        return rows
    _refuse_row(squares == 0, what, "is zero, which has no direction to compare by cosine")
    # a unit vector that is read and stored again stays the same to the last bit
    squares[np.abs(squares - 1) < UNIT_WITHIN] = 1
    return (rows / np.sqrt(squares)[:, None]).astype(np.float32)


def check_items(items: Sequence[Item], spec: CollectionSpec) -> tuple[list[Item], list[str], np.ndarray]:
    """What an upsert will write: the last item of each id, the JSON of their metadata, and their vectors (n, D).

    Raises:
        InvalidRequest: an item is not possible; nothing of the request is written.
    """
    if isinstance(items, Item) or not isinstance(items, Sequence):
        raise InvalidRequest(f"Items come as a list; got {type(items).__name__}.")
    for item in items:
        if not isinstance(item, Item):
            raise InvalidRequest(f"An item is an Item(id, vector, metadata, thumbnail); got {item!r:.80}.")
        check_name(item.id, "Item id")
        if item.thumbnail is not None:
            check_thumbnail(item)
    texts = [metadata_json(item) for item in items]
    vectors = check_vectors([item.vector for item in items], spec, lambda i: f"item {items[i].id!r}")
    last = list({item.id: i for i, item in enumerate(items)}.values())
    if len(last) == len(items):
        return list(items), texts, vectors
    return [items[i] for i in last], [texts[i] for i in last], vectors[last]


def check_thumbnail(item: Item) -> None:
    """Refuses a thumbnail that is none.

    Raises:
        InvalidRequest: no bytes, or too many.
    """
    if not isinstance(item.thumbnail, bytes):
        raise InvalidRequest(f"The thumbnail of item {item.id!r} is JPEG bytes; got {type(item.thumbnail).__name__}.")
    if len(item.thumbnail) > MAX_THUMBNAIL:
        raise InvalidRequest(
            f"The thumbnail of item {item.id!r} has {len(item.thumbnail)} bytes: make it at most {MAX_THUMBNAIL}."
        )


def metadata_json(item: Item) -> str:
    """The text that is kept of an item's metadata.

    Raises:
        InvalidRequest: it is no object, not JSON, or too much.
    """
    if not isinstance(item.metadata, Mapping):
        raise InvalidRequest(
            f"The metadata of item {item.id!r} is an object of keys and values; got {item.metadata!r:.80}."
        )
    try:
        text = _JSON.encode(item.metadata if isinstance(item.metadata, dict) else dict(item.metadata))
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        # file names may hold half surrogates, which UTF-8 has none of
        return metadata_json(Item(item.id, item.vector, _without_surrogates(item.metadata)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"The metadata of item {item.id!r} is not JSON ({error}).") from error
    # looked at closely only where a quick look does not rule it out: this runs for every item
    if "\\u0000" in text and _has_nul(item.metadata):
        raise InvalidRequest(f"The metadata of item {item.id!r} hold a NUL character: drop it, no filter can name it.")
    if size > 2 * MAX_DEPTH and text.count("{") + text.count("[") > MAX_DEPTH and _depth(item.metadata) > MAX_DEPTH:
        raise InvalidRequest(f"The metadata of item {item.id!r} are nested deeper than {MAX_DEPTH}: flatten them.")
    if size > MAX_METADATA:
        raise InvalidRequest(
            f"The metadata of item {item.id!r} takes {size} bytes as JSON: keep at most {MAX_METADATA} with an item."
        )
    return text


def _stacked(vectors: Sequence[np.ndarray] | np.ndarray, spec: CollectionSpec, what: Any) -> np.ndarray:
    if not isinstance(vectors, np.ndarray) and all(_is_row(vector, spec) for vector in vectors):
        return np.concatenate(vectors).reshape(len(vectors), spec.dim)  # much quicker than an array of arrays
    try:
        with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is refused later
            rows = np.asarray(vectors, np.float32)
    except (TypeError, ValueError):
        rows = None
    if rows is not None and rows.shape == (len(vectors), spec.dim):
        return np.ascontiguousarray(rows)
    for i, vector in enumerate(vectors):
        try:
            shape = np.asarray(vector, np.float32).shape
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"The vector of {what(i)} is no list of numbers.") from error
        if shape != (spec.dim,):
            raise InvalidRequest(f"The vector of {what(i)} has shape {shape}; the collection takes ({spec.dim},).")
    raise InvalidRequest(f"The vectors make no array of numbers of {spec.dim} columns.")


def _is_row(vector: Any, spec: CollectionSpec) -> bool:
    return isinstance(vector, np.ndarray) and vector.dtype == np.float32 and vector.shape == (spec.dim,)


def _refuse_row(bad: Any, what: Any, sentence: str) -> None:
    if bad.any():
        raise InvalidRequest(f"The vector of {what(int(bad.argmax()))} {sentence}.")


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(one) for one in value]
    return value


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(map(_has_nul, value)) or any(map(_has_nul, value.values()))
    return isinstance(value, list | tuple) and any(map(_has_nul, value))


def _depth(value: Any) -> int:
    """How deep lists and objects are nested, without recursion."""
    deepest, level = 0, [value]
    while level := [one for one in level if isinstance(one, Mapping | list | tuple)]:
        deepest += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, Mapping) else one)]
    return deepest
