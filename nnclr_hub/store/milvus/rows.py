"""The schema of a Milvus collection, and the conversion between items and rows.

id         VARCHAR, the primary key
vector     FLOAT_VECTOR, normalized if the metric is cosine; rounded through float16 if the precision is f16
metadata   VARCHAR, the JSON text: Milvus's own JSON would round large integers
facets     JSON, what filters see of the metadata (where.py)
thumbnail  VARCHAR, "=" and base64; "" for none
crc        INT64, of the vector's float32 bytes
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from nnclr_hub.errors import InvalidRequest, StoreCorrupt, StoreTooNew
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import check_items
from nnclr_hub.store.milvus.where import FORMAT, facets
from nnclr_hub.store.spec import CollectionSpec

# for cosine, vectors are stored normalized, as in EmbeddedStore; COSINE would normalize them again after rounding
METRICS = {"cosine": "IP", "dot": "IP", "l2": "L2"}
SPEC_PROPERTY = "nnclr_spec"
# Milvus's limits of a VARCHAR, in bytes, and of a FLOAT_VECTOR
_MAX_TEXT = 65_535
_MAX_DIM = 32_768
# bytes per request: Milvus accepts 64 MiB, but holds several copies of it
_REQUEST = 8 * 2**20
# bytes of a row besides vector and texts, generously
_OVERHEAD = 256


def schema_of(pymilvus: Any, spec: CollectionSpec) -> Any:
    """Return the schema of a collection; the specification is in its description as well as in its properties.

    Raises:
        InvalidRequest: the vectors are too long for Milvus.
    """
    if spec.dim > _MAX_DIM:
        raise InvalidRequest(f"dim must be at most {_MAX_DIM} in Milvus, got {spec.dim}.")
    kinds = pymilvus.DataType
    schema = pymilvus.MilvusClient.create_schema(
        auto_id=False, enable_dynamic_field=False, description=spec_to_text(spec)
    )
    schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=128)
    schema.add_field("vector", kinds.FLOAT_VECTOR, dim=spec.dim)
    schema.add_field("metadata", kinds.VARCHAR, max_length=_MAX_TEXT)
    schema.add_field("facets", kinds.JSON)
    schema.add_field("thumbnail", kinds.VARCHAR, max_length=_MAX_TEXT)
    schema.add_field("crc", kinds.INT64)
    return schema


def spec_to_text(spec: CollectionSpec) -> str:
    return json.dumps({**asdict(spec), "facets": FORMAT})


def spec_of(described: Mapping[str, Any], name: str) -> CollectionSpec:
    """Return the specification from Milvus's description of a collection.

    Raises:
        StoreCorrupt: it has none that is valid.
        StoreTooNew: its facets have another format.
    """
    text = (described.get("properties") or {}).get(SPEC_PROPERTY) or described.get("description") or ""
    try:
        known = json.loads(text)
        format = known.pop("facets")
        spec = CollectionSpec(**{**known, "indexed": tuple(known["indexed"])})
    except (ValueError, TypeError, KeyError) as error:
        raise StoreCorrupt(
            f"Collection {name!r} has no valid specification ({text!r:.80}), so another program created it. Drop it "
            "there, or choose another name."
        ) from error
    if format != FORMAT:
        raise StoreTooNew(
            f"Collection {name!r} has format {format}, and this version of nnclr_hub reads only format {FORMAT}; "
            "export it with the version that wrote it (`nnclr store export`), then import it with this one "
            "(`nnclr store import`)."
        )
    return spec


# ------------------------------------------------------------------------------ write


def to_requests(items: Sequence[Item], spec: CollectionSpec) -> Iterator[list[dict[str, Any]]]:
    """Yield rows of all items, the last of each id, in lists that fit into a request.

    Raises:
        InvalidRequest: an item is invalid; raised before the first list.
    """
    chosen, texts, vectors = check_items(items, spec)
    if spec.precision == "f16":
        vectors = vectors.astype(np.float16).astype(np.float32)
    return in_requests([_row(item, text, vector) for item, text, vector in zip(chosen, texts, vectors, strict=True)])


def in_requests(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows in lists that fit into a request."""
    request: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        takes = 4 * len(row["vector"]) + 3 * len(row["metadata"]) + len(row["thumbnail"]) + _OVERHEAD
        if request and size + takes > _REQUEST:
            yield request
            request, size = [], 0
        request.append(row)
        size += takes
    if request:
        yield request


def _row(item: Item, text: str, vector: np.ndarray) -> dict[str, Any]:
    thumbnail = "" if item.thumbnail is None else "=" + base64.b64encode(item.thumbnail).decode()
    return {
        "id": item.id,
        "vector": vector,
        **about(text),
        "thumbnail": thumbnail,
        "crc": checksum(vector),
    }


def about(text: str) -> dict[str, Any]:
    """Return the columns that depend on the metadata, whose JSON is given."""
    metadata = json.loads(text)
    if len(text.encode()) > _MAX_TEXT:  # 65,536 bytes are allowed; without the space after a colon it fits
        text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
    return {"metadata": text, "facets": facets(metadata)}


# ------------------------------------------------------------------------------ read


def to_vector(row: Mapping[str, Any]) -> np.ndarray:
    """Return the vector (D,) float32 of a row."""
    return np.asarray(row["vector"], np.float32)


def to_thumbnail(text: str) -> bytes | None:
    return base64.b64decode(text[1:]) if text else None


def to_item(row: Mapping[str, Any]) -> Item:
    """Return an item from the columns of a row; without the column, its vector is empty (0,)."""
    vector = to_vector(row) if "vector" in row else np.zeros(0, np.float32)
    return Item(row["id"], vector, json.loads(row["metadata"]), to_thumbnail(row.get("thumbnail", "")))


def checksum(vector: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(vector, "<f4").tobytes())


def is_damaged(row: Mapping[str, Any], spec: CollectionSpec) -> bool:
    """Return whether a vector is not the one that was written."""
    vector = to_vector(row)
    return vector.shape != (spec.dim,) or checksum(vector) != row["crc"]
