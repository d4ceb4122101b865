"""Vectors to neighbours, kept safely.

with open_store("./nnclr-store") as store:
    collection = store.create("photos", CollectionSpec(dim=256))
    collection.upsert([Item("a", vector, {"label": "cat"})])      # returns when durable
    collection.search(query, k=5, where={"must": [{"key": "label", "match": "cat"}]})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.store.base import VectorStore


def open_store(uri: str, read_only: bool = False) -> VectorStore:
    """Opens a store, making it if it is not there.

    Args:
        uri: a folder.
        read_only: leave the lock to others and refuse writes; sees what a writer beside it commits.

    Raises:
        StoreLocked: another process has it open for writing.
        StoreTooNew, StoreCorrupt: it cannot be read by this version, or at all.
        InvalidRequest: read_only on a folder that holds no store, or a kind of store we do not have.
    """
    uri = str(uri)
    if uri.startswith("milvus://") or uri.endswith(".milvus.db"):
        raise InvalidRequest(f"{uri}: this version keeps collections in a folder alone; give a folder.")
    from nnclr_hub.store.embedded import EmbeddedStore

    return EmbeddedStore(uri, read_only=read_only)
