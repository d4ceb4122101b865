"""Vectors to neighbours, kept safely.

with open_store("./nnclr-store") as store:
    collection = store.create("photos", CollectionSpec(dim=256))
    collection.upsert([Item("a", vector, {"label": "cat"})])      # returns when durable
    collection.search(query, k=5, where={"must": [{"key": "label", "match": "cat"}]})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnclr_hub.store.base import VectorStore


def open_store(uri: str, read_only: bool = False, *, memory: int | None = None) -> VectorStore:
    """Opens a store, making it if it is not there.

    Args:
        uri: a folder; `milvus://host:19530/database`, a Milvus server; `./photos.milvus.db`, a file of Milvus Lite.
        read_only: leave the lock to others and refuse writes; sees what a writer beside it commits.
        memory: of a folder, bytes that the index of a collection may take; None: half of the machine's.

    Raises:
        StoreLocked: another process has it open for writing.
        StoreTooNew, StoreCorrupt: it cannot be read by this version, or at all.
        InvalidRequest: read_only on a folder that holds no store.
        MissingDependency: Milvus without its client.
    """
    uri = str(uri)
    if uri.startswith("milvus://") or uri.endswith(".milvus.db"):
        from nnclr_hub.store.milvus.store import MilvusStore

        return MilvusStore(uri, read_only=read_only)
    from nnclr_hub.store.embedded.store import EmbeddedStore

    return EmbeddedStore(uri, read_only=read_only, memory=memory)
