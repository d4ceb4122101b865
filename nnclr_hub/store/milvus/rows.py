"""Items as rows of a Milvus collection, and back; and the schema of those rows.

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

from nnclr_hub.errors import InvalidRequest, StoreCorrupt
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import check_items
from nnclr_hub.store.milvus.where import facets
from nnclr_hub.store.spec import CollectionSpec

# vectors to compare by cosine are kept normalized, as the other store has them; COSINE would normalize once more what
# was rounded to float16
METRICS = {"cosine": "IP", "dot": "IP", "l2": "L2"}
SPEC_PROPERTY = "nnclr_spec"
# of VARCHAR, in bytes
_LONGEST = 65_535
# of FLOAT_VECTOR
_LARGEST_DIM = 32_768
# a request may have 64 MiB, and Milvus holds it several times over
_REQUEST = 8 * 2**20
# what a row takes beside vector and texts, generously
_OVERHEAD = 256


def schema_of(pymilvus: Any, spec: CollectionSpec) -> Any:
    """The schema of a collection; the specification travels in its description as well as in its properties.

    Raises:
        InvalidRequest: vectors that are too long for Milvus.
    """
    if spec.dim > _LARGEST_DIM:
        raise InvalidRequest(f"dim={spec.dim} is not possible in Milvus: vectors have at most {_LARGEST_DIM} numbers.")
    kinds = pymilvus.DataType
    schema = pymilvus.MilvusClient.create_schema(
        auto_id=False, enable_dynamic_field=False, description=spec_to_text(spec)
    )
    schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=128)
    schema.add_field("vector", kinds.FLOAT_VECTOR, dim=spec.dim)
    schema.add_field("metadata", kinds.VARCHAR, max_length=_LONGEST)
    schema.add_field("facets", kinds.JSON)
    schema.add_field("thumbnail", kinds.VARCHAR, max_length=_LONGEST)
    schema.add_field("crc", kinds.INT64)
    return schema


def spec_to_text(spec: CollectionSpec) -> str:
    return json.dumps(asdict(spec))


def spec_of(described: Mapping[str, Any], name: str) -> CollectionSpec:
    """The specification from what Milvus says of a collection.

    Raises:
        StoreCorrupt: there is none that we can read.
    """
    text = (described.get("properties") or {}).get(SPEC_PROPERTY) or described.get("description") or ""
    try:
        known = json.loads(text)
        return CollectionSpec(**{**known, "indexed": tuple(known["indexed"])})
    except (ValueError, TypeError, KeyError) as error:
        raise StoreCorrupt(
            f"Collection {name!r} has no specification of ours ({text!r:.80}): it was made by another program; drop it "
            "there, or take another name."
        ) from error


# ------------------------------------------------------------------------------ writing


def to_requests(items: Sequence[Item], spec: CollectionSpec) -> Iterator[list[dict[str, Any]]]:
    """Rows of all items, the last of each id, in lists that fit into a request.

    Raises:
        InvalidRequest: of the first step, before any list: an item is not possible.
    """
    chosen, texts, vectors = check_items(items, spec)
    if spec.precision == "f16":
        vectors = vectors.astype(np.float16).astype(np.float32)
    return _requests([_row(item, text, vector) for item, text, vector in zip(chosen, texts, vectors, strict=True)])


def _requests(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    request: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        takes = row["vector"].nbytes + 3 * len(row["metadata"]) + len(row["thumbnail"]) + _OVERHEAD
        if request and size + takes > _REQUEST:
            yield request
            request, size = [], 0
        request.append(row)
        size += takes
    if request:
        yield request


def _row(item: Item, text: str, vector: np.ndarray) -> dict[str, Any]:
    metadata = json.loads(text)
    if len(text.encode()) > _LONGEST:  # 65,536 bytes are allowed; the space after a colon makes room for the last
        text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
    thumbnail = "" if item.thumbnail is None else "=" + base64.b64encode(item.thumbnail).decode()
    return {
        "id": item.id,
        "vector": vector,
        "metadata": text,
        "facets": facets(metadata),
        "thumbnail": thumbnail,
        "crc": checksum(vector),
    }


# ------------------------------------------------------------------------------ reading


def to_vector(row: Mapping[str, Any]) -> np.ndarray:
    """(D,) float32."""
    return np.asarray(row["vector"], np.float32)


def to_thumbnail(text: str) -> bytes | None:
    return base64.b64decode(text[1:]) if text else None


def to_item(row: Mapping[str, Any]) -> Item:
    """An item from the columns that were asked for; without a vector it is empty (0,)."""
    vector = to_vector(row) if "vector" in row else np.zeros(0, np.float32)
    return Item(row["id"], vector, json.loads(row["metadata"]), to_thumbnail(row.get("thumbnail", "")))


def checksum(vector: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(vector, "<f4").tobytes())


def is_damaged(row: Mapping[str, Any], spec: CollectionSpec) -> bool:
    """Whether a vector is not the one that was written."""
    vector = to_vector(row)
    return vector.shape != (spec.dim,) or checksum(vector) != row["crc"]
