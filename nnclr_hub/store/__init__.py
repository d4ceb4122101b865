"""Vectors to neighbors, kept safely.

with open_store("./nnclr-store") as store:
    collection = store.create("photos", CollectionSpec(dim=256))
    collection.upsert([Item("a", vector, {"label": "cat"})])      # returns when durable
    collection.search(query, k=5, where={"must": [{"key": "label", "match": "cat"}]})
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from nnclr_hub.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:
    from nnclr_hub.store.base import VectorStore


def open_store(uri: str, read_only: bool = False, *, memory: int | None = None, shared: bool = False) -> VectorStore:
    """Opens a store, making it if it is not there.

    Args:
        uri: a folder; `milvus://host:19530/database`, a Milvus server; `./photos.milvus.db`, a file of Milvus Lite.
        read_only: leave the lock to others and refuse writes; sees what a writer beside it commits.
        memory: of a folder, bytes that the index of a collection may take; None: half of the machine's.
        shared: others like this have it open too, and none of them keeps records: jobs and probes are another's.

    Raises:
        StoreLocked: another process has it open for writing.
        StoreTooNew, StoreCorrupt: it cannot be read by this version, or at all.
        InvalidRequest: no store can be there, or read_only on a folder that holds none, or it cannot be shared.
        MissingDependency: a folder without faiss, Milvus without its client.
    """
    if not isinstance(uri, str | PathLike) or not str(uri):
        raise InvalidRequest(f"A store is a folder, or milvus://host:port; got {uri!r}.")
    uri = str(uri)
    if "://" in uri and not uri.startswith("milvus://"):
        raise InvalidRequest(f"{uri}: a store is a folder, or milvus://host:port.")
    if uri.startswith("milvus://"):
        from nnclr_hub.store.milvus.store import MilvusStore

        return MilvusStore(uri, read_only=read_only, shared=shared)
    is_file = uri.endswith(".milvus.db")
    if shared and (is_file or not read_only):
        raise InvalidRequest(
            f"{uri} belongs to one process{'' if is_file else ' that writes'}: for several, "
            f"{'' if is_file else 'open it --read-only, or '}keep the vectors in a Milvus server, milvus://HOST:PORT."
        )
    if is_file:
        from nnclr_hub.store.milvus.store import MilvusStore

        return MilvusStore(uri, read_only=read_only)
    try:
        from nnclr_hub.store.embedded.store import EmbeddedStore
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        raise MissingDependency(
            "A store searches with faiss, which is not installed: pip install faiss-cpu."
        ) from error

    return EmbeddedStore(uri, read_only=read_only, memory=memory)
