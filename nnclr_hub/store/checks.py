"""Validation of names, vectors, metadata, thumbnails and search options."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from numbers import Real
from typing import Any

import numpy as np
import orjson

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.plural import counted
from nnclr_hub.store.items import Item, SearchOptions
from nnclr_hub.store.spec import CollectionSpec

MAX_K = 10_000
MAX_EFFORT = 100_000
# limits of searches by the command line, REST and the apps, which return and render every match
MAX_SEARCH_K = 1000
MAX_SEARCH_EFFORT = 10_000
MAX_EXAMPLES = 1000
MAX_DEPTH = 100  # depth of metadata; SQLite reads JSON up to 1000
MAX_LENGTH = 1e18  # length of a vector: the square of a distance must fit into float32
MAX_F16 = float(np.finfo(np.float16).max)
UNIT_TOLERANCE = 1e-6  # a squared length this close to 1 is that of a unit vector in float32
MAX_LIMIT = 10_000
MAX_METADATA = 64 * 1024
MAX_THUMBNAIL = 32 * 1024
JPEG = b"\xff\xd8\xff"  # the first bytes of each
MAX_NAME = 128
NAME = rf"[A-Za-z0-9._~-]{{1,{MAX_NAME}}}"  # as a pattern; `.` and `..` are not names
_NAME = re.compile(NAME)
# refuse dataclasses and dates; a UUID becomes a text, and a member of an Enum its value
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


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


def check_whole(name: str, value: int, most: int) -> int:
    """Return a whole number from 1 to `most` if it is valid."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= most:
        raise InvalidRequest(f"{name} must be a whole number from 1 to {most}, got {value!r:.80}.")
    return int(value)


def check_search(k: int, options: SearchOptions) -> int:
    """Check what a search asks for, and return k; its filter is checked when it is compiled."""
    k = check_whole("k", k, MAX_K)
    if not isinstance(options, SearchOptions):
        raise InvalidRequest(f"options must be a SearchOptions, got {options!r:.80}.")
    if options.effort is not None:
        check_whole("effort", options.effort, MAX_EFFORT)
    check_threshold(options.score_threshold)
    for name in ("exact", "with_vector", "with_percentile"):
        if not isinstance(value := getattr(options, name), bool | np.bool_):
            raise InvalidRequest(f"{name} must be true or false, got {value!r:.80}.")
    return k


def check_threshold(threshold: float | None) -> None:
    """Check a score threshold."""
    is_number = isinstance(threshold, Real) and not isinstance(threshold, bool) and threshold == threshold
    if threshold is not None and not is_number:
        raise InvalidRequest(f"score_threshold must be a number, got {threshold!r}.")


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


def check_vectors(
    vectors: Sequence[np.ndarray] | np.ndarray, spec: CollectionSpec, what: Callable[[int], str]
) -> np.ndarray:
    """Return vectors (n, D) float32 as the collection compares them: normalized if the metric is cosine.

    `what` takes a row number, and returns how error messages call the vector.
    """
    rows = _stack(vectors, spec, what)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)

    def refuse(bad: Any, sentence: str) -> None:
        if bad.any():
            raise InvalidRequest(f"The vector of {what(int(bad.argmax()))} {sentence}.")

    # the sums show whether there is NaN or infinity at all; only then are the rows searched for it
    if not np.isfinite(squares).all():
        refuse(~np.isfinite(rows).all(axis=1), "contains NaN or infinity")
    if spec.metric != "cosine":
        if spec.precision == "f16":
            refuse((np.abs(rows) > MAX_F16).any(axis=1), f"has a number above {MAX_F16:.0f}, the limit of f16")
        refuse(squares > MAX_LENGTH**2, f"is longer than {MAX_LENGTH:.0e}, which makes scores infinite")
        return rows
    refuse(squares == 0, "is zero, so it has no direction to compare by cosine")
    # a unit vector that is read and stored again must not change, not even in its last bit
    others = np.flatnonzero(np.abs(squares - 1) >= UNIT_TOLERANCE)
    if len(others):
        rows = rows.copy()  # which may be the caller's
        rows[others] /= np.sqrt(squares[others])[:, None]
    return rows


def _stack(vectors: Sequence[np.ndarray] | np.ndarray, spec: CollectionSpec, what: Callable[[int], str]) -> np.ndarray:
    """Return vectors (n, D) float32."""
    if isinstance(vectors, str | bytes):
        raise InvalidRequest(f"Vectors must be a list or array of numbers, got {vectors!r:.80}.")
    try:
        count = len(vectors)
    except TypeError as error:
        raise InvalidRequest(f"Vectors must be an array (n, {spec.dim}), got {vectors!r:.80}.") from error
    if not count:
        return np.zeros((0, spec.dim), np.float32)
    try:
        with np.errstate(over="ignore"):  # numbers above float32 become infinite, and are refused later
            rows = _real(vectors)
        if rows.shape == (count, spec.dim):
            return np.ascontiguousarray(rows)
    except (TypeError, ValueError, RuntimeError):  # the last one by torch
        pass  # the message names the first wrong one
    for i, vector in enumerate(vectors):
        try:
            with np.errstate(over="ignore"):
                shape = _real(vector).shape
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidRequest(f"The vector of {what(i)} is not a list of numbers ({error}).") from error
        if shape != (spec.dim,):
            raise InvalidRequest(f"The vector of {what(i)} must have shape ({spec.dim},), got {shape}.")
    raise InvalidRequest(f"The vectors must be an array of numbers with {spec.dim} columns.")


def _real(numbers: Any) -> np.ndarray:
    rows = np.asarray(numbers)
    if np.iscomplexobj(rows):  # NumPy would take the real parts
        raise TypeError("they are complex")
    return rows.astype(np.float32, copy=False)


def check_queries(vectors: Sequence[np.ndarray] | np.ndarray, spec: CollectionSpec) -> np.ndarray:
    """Return queries (n, D) float32 as `check_vectors` does."""
    return check_vectors(vectors, spec, lambda i: "the query" if len(vectors) == 1 else f"query {i}")


def check_items(items: Sequence[Item], spec: CollectionSpec) -> tuple[list[Item], list[str], np.ndarray]:
    """Check items; of those with the same id, keep the last.

    Returns:
        The items that were kept, the JSON of their metadata, and their vectors (n, D).
    """
    ids, texts = described_items(items)
    vectors = check_vectors([item.vector for item in items], spec, lambda i: f"item {ids[i]!r}")
    if len(set(ids)) == len(ids):
        return list(items), texts, vectors
    last = list({id: i for i, id in enumerate(ids)}.values())
    return [items[i] for i in last], [texts[i] for i in last], vectors[last]


def described_items(items: Sequence[Item]) -> tuple[list[str], list[str]]:
    """Check items without their vectors; return their ids and the JSON of their metadata."""
    if isinstance(items, Item) or not isinstance(items, Sequence):
        raise InvalidRequest(f"Items must be a list, got {type(items).__name__}.")
    for item in items:
        if not isinstance(item, Item):
            raise InvalidRequest(f"Each item must be an Item(id, vector, metadata, thumbnail), got {item!r:.80}.")
        jpeg = item.thumbnail
        if jpeg is not None and not (isinstance(jpeg, bytes) and jpeg[:3] == JPEG and len(jpeg) <= MAX_THUMBNAIL):
            got = f"{counted(len(jpeg), 'byte')}, {jpeg[:8]!r}..." if isinstance(jpeg, bytes) else type(jpeg).__name__
            raise InvalidRequest(
                f"The thumbnail of item {item.id!r:.150} must be a JPEG of at most {MAX_THUMBNAIL} bytes, got {got}."
            )
    ids = check_ids([item.id for item in items])
    return ids, list(map(metadata_json, items))


def metadata_json(item: Item) -> str:
    """Return the JSON that is stored of an item's metadata, or of those of a request, without an id."""
    what = f"The metadata of item {item.id!r}" if item.id else "The metadata"
    if not isinstance(item.metadata, dict) and not isinstance(item.metadata, Mapping):  # the former is much faster
        raise InvalidRequest(f"{what} must be an object, got {item.metadata!r:.80}.")
    try:
        data = orjson.dumps(item.metadata, _plain, _STRICT)
    except TypeError as error:
        if "surrogates" in str(error):  # orjson does not say which text it is
            raise InvalidRequest(f"{what} must be UTF-8, got {item.metadata!r:.200}.") from error
        raise InvalidRequest(f"{what} is not JSON with integers of at most 64 bits ({error}).") from error
    if len(data) > MAX_METADATA:
        raise InvalidRequest(f"{what} must be at most {MAX_METADATA} bytes as JSON, got {len(data)}.")
    # cheap tests first, because this runs for every item; orjson writes NaN as null
    suspicious = b"null" in data or b"\\u0000" in data or data.count(b"{") + data.count(b"[") > MAX_DEPTH
    if suspicious and (refusal := _refusal(item.metadata)):
        raise InvalidRequest(f"{what} {refusal}.")
    return data.decode()


def _plain(value: Any) -> Any:
    """Return what orjson encodes instead of a value that it does not know."""
    if isinstance(value, float):  # such as np.float64
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _refusal(value: Any, depth: int = 1) -> str | None:
    """Return why a value of metadata cannot be stored, although orjson encodes it."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float) and not math.isfinite(value):
        return "must not contain NaN or infinity"
    if isinstance(value, str) and "\0" in value:
        return "must not contain NUL characters"
    if not isinstance(value, Mapping | list | tuple):
        return None
    if depth > MAX_DEPTH:
        return f"must not be nested deeper than {MAX_DEPTH} levels"
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value
    return next(filter(None, (_refusal(one, depth + 1) for one in inner)), None)
