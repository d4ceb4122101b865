"""Validation of names, vectors, metadata, thumbnails and search options."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.items import Item, SearchOptions
from nnclr_hub.store.spec import CollectionSpec

MAX_K = 10_000
MAX_EFFORT = 100_000
# limits of searches by the command line, REST and the apps, which return and render every match
MAX_SEARCH_K = 1000
MAX_SEARCH_EFFORT = 10_000
MAX_EXAMPLES = 1000
MAX_DEPTH = 100  # of metadata; SQLite reads JSON up to a depth of 1000
MAX_LENGTH = 1e18  # of a vector: the square of a distance must fit into float32
UNIT_TOLERANCE = 1e-6  # a squared length this close to 1 is that of a unit vector in float32
MAX_LIMIT = 10_000
MAX_METADATA = 64 * 1024
MAX_THUMBNAIL = 32 * 1024
MAX_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9._~-]{{1,{MAX_NAME}}}")
# circular metadata fails by the depth of recursion, so the check for it can be skipped
_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, check_circular=False, separators=(",", ":"))
# refuse dataclasses, dates and subclasses; a UUID becomes a text, and a member of an Enum its value
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_HUGE = re.compile("[0-9]{309}")  # digits of an integer that no float can hold
_MAX_F16 = float(np.finfo(np.float16).max)


def check_name(name: str, what: str) -> str:
    """Return the name of an item or probe if it is valid."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidRequest(f"{what} {name!r:.150} is not valid; use 1 to 128 of the characters A-Z a-z 0-9 . _ ~ -")
    return name


def check_collection_name(name: str, what: str = "Collection name") -> str:
    """Return the name of a collection or alias if it is valid.

    Beyond those of `check_name`, it may have letters, marks and digits of any script, and single spaces inside. It is
    in the normal form NFC, so that equal names are equal texts, and has at most 128 bytes, so that Milvus can store it.
    """
    if isinstance(name, str) and name.isascii() and _NAME.fullmatch(name) and name not in (".", ".."):
        return name
    if (
        not isinstance(name, str)
        or name in ("", ".", "..")
        or len(name.encode("utf-8", "replace")) > MAX_NAME
        or name != unicodedata.normalize("NFC", name)
        or name != " ".join(name.split())
        or not all(one in " ._~-" or one.isalnum() or unicodedata.category(one)[0] == "M" for one in name)
    ):
        raise InvalidRequest(
            f"{what} {name!r:.150} is not valid; use letters, digits, spaces inside, and . _ ~ -, at most {MAX_NAME} "
            "bytes in UTF-8 (NFC)."
        )
    return name


def check_k(k: int, most: int = MAX_K) -> int:
    """Return the number of neighbors if it is valid."""
    return _check_whole("k", k, most)


def check_effort(effort: int | None, most: int = MAX_EFFORT) -> int | None:
    """Return the search effort if it is valid."""
    return None if effort is None else _check_whole("effort", effort, most)


def check_limit(limit: int) -> int:
    """Return the size of a page if it is valid."""
    return _check_whole("limit", limit, MAX_LIMIT)


def _check_whole(name: str, value: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= most:
        raise InvalidRequest(f"{name} must be between 1 and {most}, got {value!r}.")
    return int(value)


def check_options(options: SearchOptions) -> None:
    """Check effort and score threshold; the filter is checked when it is compiled."""
    check_effort(options.effort)
    check_threshold(options.score_threshold)


def check_ids(ids: Sequence[str]) -> list[str]:
    """Return a list of item ids if they are valid."""
    if isinstance(ids, str):
        raise InvalidRequest(f"ids must be a list of ids, got the string {ids!r:.150}.")
    return [check_name(id, "Item id") for id in ids]


def is_item_id(text: str) -> bool:
    """Return whether a text can be the id of an item."""
    try:
        return bool(check_ids([text]))
    except InvalidRequest:
        return False


def check_threshold(threshold: float | None) -> float | None:
    """Return the score threshold if it is valid."""
    if threshold is None:
        return None
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or threshold != threshold:
        raise InvalidRequest(f"score_threshold must be a number, got {threshold!r}.")
    return threshold


def check_vector(vector: np.ndarray, spec: CollectionSpec, what: str) -> np.ndarray:
    """Return a vector (D,) float32 as the collection compares it: normalized if the metric is cosine."""
    if _is_row(vector, spec):  # one query should not pay for the checks that a thousand vectors need
        square = float(np.dot(vector, vector))
        if 1e-12 < square < 1e12 and (spec.precision == "f32" or spec.metric == "cosine"):
            if spec.metric != "cosine" or abs(square - 1) < UNIT_TOLERANCE:
                return vector
            return vector / np.float32(np.sqrt(square))
    return check_vectors([vector], spec, lambda _: what)[0]


def check_vectors(vectors: Sequence[np.ndarray] | np.ndarray, spec: CollectionSpec, what: Any) -> np.ndarray:
    """Return vectors (n, D) float32, each checked as by `check_vector`, but all at once.

    Args:
        vectors: n vectors of D numbers.
        spec: of the collection.
        what: takes a row number, returns how error messages call the vector.
    """
    try:
        empty = len(vectors) == 0
    except TypeError as error:
        raise InvalidRequest(f"Vectors must be an array (n, {spec.dim}), got {vectors!r:.80}.") from error
    if empty:
        return np.zeros((0, spec.dim), np.float32)
    rows = _stacked(vectors, spec, what)
    if spec.metric == "cosine":
        # most vectors are unit vectors, which float32 is enough to see
        with np.errstate(over="ignore", invalid="ignore"):
            unit = np.abs(np.einsum("ij,ij->i", rows, rows) - 1) < UNIT_TOLERANCE / 2
        if unit.all():
            return rows
    largest = _MAX_F16 if spec.precision == "f16" and spec.metric != "cosine" else np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    # the sums show whether there is NaN or infinity at all; only then are the rows searched for it
    if not np.isfinite(squares).all():
        _refuse_row(~np.isfinite(rows).all(axis=1), what, "contains NaN or infinity")
    if largest < np.inf:
        _refuse_row((np.abs(rows) > largest).any(axis=1), what, f"has a number above {largest:.0f}, the limit of f16")
    if spec.metric != "cosine":
        _refuse_row(squares > MAX_LENGTH**2, what, f"is longer than {MAX_LENGTH:.0e}, which makes scores infinite")
        return rows
    _refuse_row(squares == 0, what, "is zero, so it has no direction to compare by cosine")
    # a unit vector that is read and stored again must not change, not even in its last bit
    others = np.flatnonzero(np.abs(squares - 1) >= UNIT_TOLERANCE)
    if len(others):
        rows = rows.copy()  # which may be the caller's
        rows[others] /= np.sqrt(squares[others])[:, None]
    return rows


def check_queries(vectors: Sequence[np.ndarray] | np.ndarray, spec: CollectionSpec) -> np.ndarray:
    """Return queries (n, D) float32 as `check_vector` does."""
    if isinstance(vectors, list) and len(vectors) == 1:
        return check_vector(vectors[0], spec, "the query")[None]
    return check_vectors(vectors, spec, lambda i: f"query {i}")


def check_items(items: Sequence[Item], spec: CollectionSpec) -> tuple[list[Item], list[str], np.ndarray]:
    """Check what an upsert will write.

    Returns:
        The last item of each id, the JSON of their metadata, and their vectors (n, D).
    """
    if isinstance(items, Item) or not isinstance(items, Sequence):
        raise InvalidRequest(f"Items must be a list, got {type(items).__name__}.")
    for item in items:
        if not isinstance(item, Item):
            raise InvalidRequest(f"Each item must be an Item(id, vector, metadata, thumbnail), got {item!r:.80}.")
        if item.thumbnail is not None:
            check_thumbnail(item)
    ids = [item.id for item in items]
    _check_item_ids(ids)
    texts = _metadata_texts(items)
    vectors = check_vectors([item.vector for item in items], spec, lambda i: f"item {ids[i]!r}")
    if len(set(ids)) == len(ids):
        return list(items), texts, vectors
    last = list({id: i for i, id in enumerate(ids)}.values())
    return [items[i] for i in last], [texts[i] for i in last], vectors[last]


def _check_item_ids(ids: Sequence[str]) -> None:
    if not set(map(type, ids)) <= {str} or not all(map(_NAME.fullmatch, ids)) or "." in ids or ".." in ids:
        check_ids(ids)  # one by one, to name the first invalid one


def _metadata_texts(items: Sequence[Item]) -> list[str]:
    """Return the JSON of each item's metadata, as `metadata_json` does, but of simple ones together."""
    metadata = [item.metadata for item in items]
    if set(map(type, metadata)) == {dict}:
        try:
            encoded = [orjson.dumps(one, option=_STRICT) for one in metadata]
        except TypeError:
            encoded = [b"null"]
        data = b"\n".join(encoded)  # which is not in JSON: strings have it as \\n
        brackets = data.count(b"{") + data.count(b"[")
        if (
            b"null" not in data
            and b"\\u0000" not in data
            and brackets < len(items) + MAX_DEPTH
            and max(map(len, encoded)) <= MAX_METADATA
        ):
            return data.decode().split("\n")
    return [metadata_json(item) for item in items]


def check_thumbnail(item: Item) -> None:
    """Check that a thumbnail is bytes, and not too many."""
    if not isinstance(item.thumbnail, bytes):
        raise InvalidRequest(f"The thumbnail of item {item.id!r} must be bytes, got {type(item.thumbnail).__name__}.")
    if len(item.thumbnail) > MAX_THUMBNAIL:
        raise InvalidRequest(
            f"The thumbnail of item {item.id!r} must be at most {MAX_THUMBNAIL} bytes, got {len(item.thumbnail)}."
        )


def metadata_json(item: Item) -> str:
    """Return the JSON that is stored of an item's metadata."""
    metadata = item.metadata
    if not isinstance(metadata, dict):  # first, because a test for Mapping takes as long as making the JSON
        if not isinstance(metadata, Mapping):
            raise InvalidRequest(f"The metadata of item {item.id!r} must be an object, got {metadata!r:.80}.")
        metadata = dict(metadata)
    try:
        text, size = _encoded(metadata)
    except UnicodeEncodeError:
        # file names may contain half surrogates, which UTF-8 cannot encode
        return metadata_json(Item(item.id, item.vector, _without_surrogates(item.metadata)))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"The metadata of item {item.id!r} is not JSON ({error}).") from error
    # cheap tests first: this runs for every item
    if size > 2 * MAX_DEPTH and text.count("{") + text.count("[") > MAX_DEPTH and _depth(item.metadata) > MAX_DEPTH:
        raise InvalidRequest(f"The metadata of item {item.id!r} must not be nested deeper than {MAX_DEPTH} levels.")
    if size > MAX_METADATA:
        raise InvalidRequest(
            f"The metadata of item {item.id!r} must be at most {MAX_METADATA} bytes as JSON, got {size}."
        )
    # in the text, because a member of an Enum may contain one
    if "\\u0000" in text and _contains(json.loads(text), _has_nul):
        raise InvalidRequest(f"The metadata of item {item.id!r} must not contain NUL characters.")
    if _HUGE.search(text) and _contains(metadata, _is_beyond_floats):
        raise InvalidRequest(
            f"The metadata of item {item.id!r} must not contain integers beyond 1.8e308, which filters cannot compare; "
            "store such a number as a string."
        )
    return text


def _encoded(metadata: dict[str, Any]) -> tuple[str, int]:
    try:
        data = orjson.dumps(metadata, option=_STRICT)
    except TypeError:  # such as keys that are numbers and numbers of more than 64 bits, which JSON has
        data = b"null"
    if b"null" in data:  # which orjson writes for NaN, too
        data = _JSON.encode(metadata).encode()
    return data.decode(), len(data)


def _stacked(vectors: Sequence[np.ndarray] | np.ndarray, spec: CollectionSpec, what: Any) -> np.ndarray:
    if (
        not isinstance(vectors, np.ndarray)
        and set(map(type, vectors)) == {np.ndarray}
        and {(vector.shape, vector.dtype) for vector in vectors} == {((spec.dim,), np.dtype(np.float32))}
    ):
        return np.concatenate(vectors).reshape(len(vectors), spec.dim)  # much faster than an array of arrays
    try:
        with np.errstate(over="ignore"):  # numbers above float32 become infinite, and are refused later
            rows = np.asarray(vectors, np.float32)
    except (TypeError, ValueError):
        rows = None
    if rows is not None and rows.shape == (len(vectors), spec.dim):
        return np.ascontiguousarray(rows)
    for i, vector in enumerate(vectors):
        try:
            shape = np.asarray(vector, np.float32).shape
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"The vector of {what(i)} is not a list of numbers.") from error
        if shape != (spec.dim,):
            raise InvalidRequest(f"The vector of {what(i)} must have shape ({spec.dim},), got {shape}.")
    raise InvalidRequest(f"The vectors must be an array of numbers with {spec.dim} columns.")


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


def _contains(value: Any, bad: Callable[[Any], bool]) -> bool:
    if isinstance(value, Mapping):
        return any(map(bad, value)) or any(_contains(one, bad) for one in value.values())
    if isinstance(value, list | tuple):
        return any(_contains(one, bad) for one in value)
    return bad(value)


def _has_nul(value: Any) -> bool:
    return isinstance(value, str) and "\0" in value


def _is_beyond_floats(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > sys.float_info.max


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level := [one for one in level if isinstance(one, Mapping | list | tuple)]:
        deepest += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, Mapping) else one)]
    return deepest
