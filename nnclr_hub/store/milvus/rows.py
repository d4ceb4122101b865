"""Items as rows of Milvus, filters as its expressions, and the kinds of index.

id         VARCHAR, the primary key
vector     FLOAT_VECTOR, normalized if the metric is cosine; FLOAT16_VECTOR if the precision is f16
metadata   VARCHAR, the JSON text: Milvus's own JSON would round large integers
terms      ARRAY of VARCHAR, what `match`, `in`, `exists` and `contains` see of the declared keys
ranges     JSON, what `range`, `prefix`, `date` and `length` see of them
thumbnail  VARCHAR, "=" and base64; "" for none

An item with {"label": "cat", "n": 5, "tags": ["a"]} has

terms      ["label?", "label:cat", "n?", "n=5", "tags?", "tags[]:a"]
ranges     {"label:": "636174", "n=": 5.0, "tags[]": 1}

Strings in `ranges` are the hex of their first 120 bytes, which keeps order and prefixes. In terms and keys, bytes other
than letters, digits and a few signs are escaped, and those that are then too long are hashed. So nothing in an
expression needs an escape of Milvus, in which its versions differ, and nothing can be injected.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidFilter, InvalidRequest, StoreCorrupt, StoreTooNew
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import check_items
from nnclr_hub.store.milvus.connection import Connection, escape
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.where import ABSENT, EVERYTHING, Condition, Group, Node, instant, is_number, rounded, value_of

FORMAT = 5  # version of the form of names, terms and ranges
# for cosine, vectors are stored normalized, as in a folder; COSINE would normalize them again after rounding
METRICS = {"cosine": "IP", "dot": "IP", "l2": "L2"}
SPEC_PROPERTY = "nnclr_spec"
# keys by which this package itself filters; they are always declared
OWN_KEYS = ("path", "root", "pixel_sha256", "file_sha256")
KEPT = 120  # bytes of a string in `ranges`
EXACT = 2**53  # from here on, neighboring integers are equal as floats
MAX_TERMS, MAX_TERM = 4096, 128  # Milvus's limit of an array; characters of a term
MAX_TEXT = 65_535  # bytes of a VARCHAR
MAX_DIM = 32_768
REQUEST = 8 * 2**20  # bytes per request: Milvus accepts 64 MiB, but holds several copies of it
OVERHEAD = 256  # bytes of a row besides vector and texts, generously


# ------------------------------------------------------------------------------ kinds of index


@dataclass(frozen=True)
class MilvusIndex:
    """An index of Milvus.

    Items that pass a filter are far apart in a graph and in lists, so searches with one look further; see
    docs/decisions/0008-milvus.md for the recall of these values.
    """

    kind: str  # Milvus's name
    build: Mapping[str, int]  # parameters
    effort: str = ""  # Milvus's name of the search effort; "": every search is exact
    default: int = 0  # effort
    filtered: int = 0  # effort with a filter
    most: int = 0  # the largest effort
    lossless: bool = True  # whether Milvus's scores are those of the vectors

    def search_params(self, spec: CollectionSpec, limit: int, effort: int | None, *, filtered: bool) -> dict[str, Any]:
        """Return Milvus's search parameters for `limit` neighbors."""
        width = effort or (self.filtered if filtered else self.default)
        if self.effort != "nprobe":  # a list of candidates, which must hold all neighbors
            width = max(limit, width if effort else max(width, 2 * limit))
        params = {self.effort: min(width, self.most)} if self.effort else {}
        return {"metric_type": METRICS[spec.metric], "params": params}


_IVF = {"effort": "nprobe", "default": 64, "filtered": 1024, "most": 65_536}
_GRAPH = {"effort": "ef", "default": 256, "filtered": 1024, "most": 32_768}
INDEXES = {
    "auto": MilvusIndex("AUTOINDEX", {}, **_GRAPH),
    "flat": MilvusIndex("FLAT", {}),
    "hnsw": MilvusIndex("HNSW", {"M": 16, "efConstruction": 200}, **_GRAPH),
    "ivf": MilvusIndex("IVF_FLAT", {"nlist": 1024}, **_IVF),
    "ivf_sq8": MilvusIndex("IVF_SQ8", {"nlist": 1024}, **_IVF, lossless=False),
    "ivf_pq": MilvusIndex("IVF_PQ", {"nlist": 1024, "nbits": 8}, **_IVF, lossless=False),
    "diskann": MilvusIndex("DISKANN", {}, "search_list", 128, 1024, 32_768),
}


def index_of(spec: CollectionSpec, connection: Connection) -> MilvusIndex:
    """Return the kind of index; Milvus Lite, which tests use instead of a server, compares with every vector."""
    return INDEXES["flat" if connection.is_lite else spec.index]


def build_params(spec: CollectionSpec, connection: Connection) -> dict[str, Any]:
    """Return the parameters of `add_index`; those of the address replace the defaults that the index has."""
    index = index_of(spec, connection)
    build = dict(index.build)
    if index.kind == "IVF_PQ":  # a divisor of the dimension, four numbers per code or as near to that as possible
        build["m"] = max(m for m in range(1, max(1, spec.dim // 4) + 1) if spec.dim % m == 0)
    build |= {name: value for name, value in connection.address.parameters.items() if name in build}
    return {"index_type": index.kind, "metric_type": METRICS[spec.metric], "params": build}


# ------------------------------------------------------------------------------ schema


def schema_of(connection: Connection, spec: CollectionSpec) -> Any:
    """Return the schema of a collection."""
    if spec.dim > MAX_DIM:
        raise InvalidRequest(f"dim must be at most {MAX_DIM} in Milvus, got {spec.dim}.")
    if spec.vectors != "raw":
        raise InvalidRequest(
            f"vectors={spec.vectors!r} needs a store in a folder, because Milvus compares the vectors that it stores; "
            "create the collection with vectors='raw'."
        )
    for name, value, instead in (("precision", "f16", "f32"), ("index", "diskann", "hnsw")):
        if getattr(spec, name) == value and not connection.is_at_least(2, 5):
            raise InvalidRequest(
                f"{name}={value!r} needs a Milvus server of version 2.5 or later, and {connection.name} is "
                f"{connection.version}; use {instead!r}."
            )
    kinds = connection.pymilvus.DataType
    schema = connection.pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=128)
    schema.add_field("vector", kinds.FLOAT16_VECTOR if spec.precision == "f16" else kinds.FLOAT_VECTOR, dim=spec.dim)
    schema.add_field("metadata", kinds.VARCHAR, max_length=MAX_TEXT)
    schema.add_field("terms", kinds.ARRAY, element_type=kinds.VARCHAR, max_capacity=MAX_TERMS, max_length=MAX_TERM)
    schema.add_field("ranges", kinds.JSON)
    schema.add_field("thumbnail", kinds.VARCHAR, max_length=MAX_TEXT)
    return schema


def spec_of(described: Mapping[str, Any], name: str) -> CollectionSpec:
    """Return the specification from Milvus's description of a collection."""
    text = (described.get("properties") or {}).get(SPEC_PROPERTY) or ""
    try:
        known = json.loads(text)
        format = known.pop("format")
        if format == FORMAT:
            return CollectionSpec(**{**known, "indexed": tuple(known["indexed"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreCorrupt(
            f"Collection {name!r} has no valid specification ({text!r:.80}), so another program created it. Drop it "
            "there, or choose another name."
        ) from error
    raise StoreTooNew(
        f"Collection {name!r} has format {format}, and this version of nnclr_hub reads only format {FORMAT}; export it "
        "with the version that wrote it (`nnclr store export`), then import it with this one (`nnclr store import`)."
    )


# ------------------------------------------------------------------------------ rows


def to_rows(items: Sequence[Item], spec: CollectionSpec) -> list[dict[str, Any]]:
    """Return the rows of all items, the last of each id."""
    chosen, texts, vectors = check_items(items, spec)
    return [
        {
            "id": item.id,
            "vector": stored_vector(vector, spec),
            "thumbnail": "" if item.thumbnail is None else "=" + base64.b64encode(item.thumbnail).decode(),
            **metadata_columns(item.id, text, spec),
        }
        for item, text, vector in zip(chosen, texts, vectors, strict=True)
    ]


def size_of(row: Mapping[str, Any]) -> int:
    """Return about how many bytes a row takes in a request."""
    texts = len(row["metadata"]) + sum(map(len, row["terms"])) + len(str(row["ranges"]))
    return 4 * len(row["vector"]) + 3 * texts + len(row["thumbnail"]) + OVERHEAD


def metadata_columns(id: str, text: str, spec: CollectionSpec) -> dict[str, Any]:
    """Return the columns that depend on the metadata, whose JSON is given."""
    if len(text.encode()) > MAX_TEXT:
        raise InvalidRequest(f"The metadata of item {id!r} must be at most {MAX_TEXT} bytes as JSON in Milvus.")
    metadata = json.loads(text)
    terms: dict[str, None] = {}
    ranges: dict[str, Any] = {}
    for key in dict.fromkeys((*spec.indexed, *OWN_KEYS)):
        value = value_of(metadata, key)
        if value is ABSENT:
            continue
        terms[_coded(key, "?")] = None
        if isinstance(value, list):
            terms |= dict.fromkeys(_term(key, "[]", one) for one in value if not isinstance(one, list | dict))
            ranges[_coded(key, "[]")] = len(value)
        elif not isinstance(value, dict):
            terms[_term(key, "", value)] = None
        if is_number(value):
            ranges[_coded(key, "=")] = float(rounded(value))
        if isinstance(value, str):
            ranges[_coded(key, ":")] = value.encode()[:KEPT].hex()
            if (moment := instant(value)) is not None:
                ranges[_coded(key, "@")] = min(max(moment, -EXACT), EXACT)
    if len(terms) > MAX_TERMS:  # `ranges` of at most 36 keys always fit
        raise InvalidRequest(
            f"The metadata of item {id!r} have {len(terms)} values under the indexed keys, more than Milvus can filter "
            f"by ({MAX_TERMS}); store less under {', '.join(spec.indexed):.100}, or index fewer keys."
        )
    return {"metadata": text, "terms": list(terms), "ranges": ranges}


def stored_vector(vector: np.ndarray, spec: CollectionSpec) -> np.ndarray:
    return vector.astype(np.float16) if spec.precision == "f16" else vector


def to_vector(row: Mapping[str, Any]) -> np.ndarray:
    """Return the vector (D,) float32 of a row; pymilvus returns float16 ones as bytes."""
    vector = row["vector"]
    if isinstance(vector, list) and len(vector) == 1 and isinstance(vector[0], bytes):
        vector = vector[0]
    return np.asarray(np.frombuffer(vector, np.float16) if isinstance(vector, bytes) else vector, np.float32)


def to_item(row: Mapping[str, Any]) -> Item:
    """Return an item from the columns of a row; without the column, its vector is empty (0,)."""
    vector = to_vector(row) if "vector" in row else np.zeros(0, np.float32)
    thumbnail = row.get("thumbnail")
    return Item(row["id"], vector, json.loads(row["metadata"]), base64.b64decode(thumbnail[1:]) if thumbnail else None)


# ------------------------------------------------------------------------------ filters


def expression(group: Group, declared: Iterable[str], collection: str) -> str:
    """Return Milvus's expression for a filter; "" for all items."""
    if group == EVERYTHING:
        return ""
    known = {*declared, *OWN_KEYS}
    for condition in group.conditions():
        if condition.kind == "geo":
            lat, lon = f"{condition.key}.lat", f"{condition.key}.lon"
            raise InvalidFilter(
                f"Milvus has no `geo` filters; index {lat} and {lon}, and use a `range` of each, or use a store in a "
                "folder."
            )
        if condition.kind != "ids" and condition.key not in known:
            raise InvalidFilter(
                f"Collection {collection!r} is in Milvus, which filters by indexed keys only, and {condition.key!r} is "
                f"not one of them ({', '.join(sorted(known)):.200}). Export the collection, create another one with "
                f"`--indexed {condition.key}`, and import the export into that."
            )
    return _group(group)


def among(ids: Sequence[str]) -> str:
    """Return the expression for some ids; they are checked, so they contain nothing that needs an escape."""
    return f"(id in {json.dumps(list(ids))})" if ids else _any([])


def _group(group: Group) -> str:
    parts = [_node(node) for node in group.must]
    if group.should is not None:
        parts.append(_any(map(_node, group.should)))
    parts += [f"(not {_node(node)})" for node in group.must_not]
    return _all(parts)


def _node(node: Node) -> str:
    return _group(node) if isinstance(node, Group) else _condition(node)


def _all(clauses: Iterable[str]) -> str:
    return f"({' and '.join(parts)})" if (parts := list(clauses)) else '(id != "")'


def _any(clauses: Iterable[str]) -> str:
    return f"({' or '.join(parts)})" if (parts := list(clauses)) else '(id == "")'  # ids have at least one character


def _condition(condition: Condition) -> str:
    key, kind, operand = condition.key, condition.kind, condition.value
    inside = "[]" if kind.startswith("contains") else ""
    if kind == "ids":
        return among(operand)
    if kind == "exists":
        return _has(_coded(key, "?")) if operand else f"(not {_has(_coded(key, '?'))})"
    if kind == "contains_all":  # a list without elements contains all of nothing
        return _all([_compared(key, "[]", ">= 0"), *(_has(_term(key, inside, value)) for value in operand)])
    if kind in ("match", "contains"):
        return _has(_term(key, inside, operand))
    if kind in ("in", "contains_any"):
        return _has(*(_term(key, inside, value) for value in operand))
    if kind == "prefix":
        return _compared(key, ":", f'like "{_hex(operand, KEPT, "A prefix")}%"')
    parts = []
    for name, bound in operand:  # bounds of a range, a date or a length
        operator = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}[name]
        if isinstance(bound, str):
            parts.append(_compared(key, ":", f'{operator} "{_hex(bound, KEPT - 1, "A bound of a range of strings")}"'))
            continue
        if abs(bound) >= EXACT:
            exact = "dates from 1685 to 2255" if kind == "date" else "numbers below 2**53"
            raise InvalidFilter(f"Milvus compares {exact} exactly; use a bound among them instead of {bound!r:.80}.")
        parts.append(_compared(key, {"length": "[]", "date": "@", "range": "="}[kind], f"{operator} {bound!r}"))
    return _all(parts)


def _hex(text: str, most: int, what: str) -> str:
    if len(text.encode()) > most:
        raise InvalidFilter(
            f"{what} has at most {most} bytes in Milvus, got {text!r:.80}; use a shorter one, or `match`."
        )
    return text.encode().hex()


def _has(*terms: str) -> str:
    unique = list(dict.fromkeys(terms))  # `array_contains_any` of one or no term is an error on some servers
    if len(unique) > 1:
        return f"array_contains_any(terms, {json.dumps(unique)})"
    return f'array_contains(terms, "{unique[0]}")' if unique else _any([])


def _compared(key: str, kind: str, comparison: str) -> str:
    path = f'ranges["{_coded(key, kind)}"]'
    return f"((exists {path}) and ({path} {comparison}))"  # false, not unknown, for items without the value


def _term(key: str, inside: str, value: Any) -> str:
    if isinstance(value, str):
        return _coded(key, f"{inside}:", value)
    if not is_number(value):
        return _coded(key, f"{inside}!", json.dumps(value))
    value = rounded(value)
    whole = float(value).is_integer() and abs(value) < 2**63
    return _coded(key, f"{inside}=", str(int(value)) if whole else repr(value))


def _coded(key: str, kind: str, value: str = "") -> str:
    text = escape(key, "./-") + kind + escape(value, "./-:@+ ")
    return text if len(text) <= MAX_TERM else "#" + blake2b(text.encode(), digest_size=16).hexdigest()
