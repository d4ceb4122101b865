"""Vector stores: durable collections of vectors, and nearest-neighbor search.

with open_store("./nnclr-store") as store:
    collection = store.create("photos", CollectionSpec(dim=256))
    collection.upsert([Item("a", vector, {"label": "cat"})])      # returns when durable
    collection.search(query, k=5, where={"must": [{"key": "label", "match": "cat"}]})
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:
    from nnclr_hub.store.base import VectorStore


@checked
def open_store(
    uri: str | Path, read_only: bool = False, *, memory: int | None = None, shared: bool = False
) -> VectorStore:
    """Open a store, or create it if it does not exist.

    Args:
        uri: a folder; or a Milvus server, `milvus://host:19530/database`, see `store.milvus.store`.
        read_only: refuse writes and take no lock; commits of a process that writes become visible.
        memory: for a folder, bytes that the index of a collection may use; None: half of the machine's memory.
        shared: several servers have the store open, and none of them keeps records of jobs and probes.

    Raises:
        StoreLocked: another process has it open for writing.
        StoreTooNew, StoreCorrupt: this version cannot read it, or it is damaged.
        InvalidRequest: the URI is invalid, or read_only and the folder has no store, or it cannot be shared.
    """
    is_server = str(uri).startswith(("milvus://", "milvus+tls://"))
    if not str(uri) or ("://" in str(uri) and not is_server):
        raise InvalidRequest(f"{uri!r} is not a valid store; expected a folder or milvus://HOST:PORT.")
    uri, is_file = str(uri), str(uri).endswith(".milvus.db")
    if shared and not is_server and (is_file or not read_only):
        raise InvalidRequest(
            f"Only one process can {'open' if is_file else 'write to'} {uri}. To use several, "
            f"{'' if is_file else 'open it --read-only, or '}use a Milvus server, milvus://HOST:PORT."
        )
    if is_server or is_file:
        from nnclr_hub.store.milvus.store import MilvusStore

        return MilvusStore(uri, read_only=read_only, shared=shared)
    try:
        from nnclr_hub.store.folder.store import EmbeddedStore
        from nnclr_hub.store.settings import StoreSettings
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        raise MissingDependency(
            "A store needs the package faiss-cpu, which is not installed: pip install faiss-cpu."
        ) from error

    settings = None if memory is None else StoreSettings(memory=memory)
    return EmbeddedStore(uri, read_only=read_only, settings=settings)
