"""Open what an address names: a store of this machine, one in Milvus, or that of a server.

bench = open_bench("./nnclr-store" | "milvus://host:19530/db" | "http://127.0.0.1:8000")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nnclr_hub import store
from nnclr_hub.arguments import checked
from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from nnclr_hub.client.client import Client
    from nnclr_hub.store.base import VectorStore
    from nnclr_hub.workbench import Workbench


@checked
def open_bench(
    address: str | Path,
    *,
    model: str | None = None,
    backend: str | None = None,
    key: str | None = None,
    read_only: bool = False,
) -> Workbench | Client:
    """Open a bench, which is also a context manager.

    Args:
        address: a folder or a Milvus server, see `open_store`; or the URL of `nnclr serve`.
        model: source of the default encoder; None: the best starter. A server selects it itself.
        backend: what runs the network, as in `load_encoder`; not for a server.
        key: the API key of a server.
        read_only: refuse writes, and take no lock; not for a server.
    """
    if is_server(address):
        from nnclr_hub.client.client import Client

        if model is not None or backend is not None or read_only:
            raise InvalidRequest("A server selects encoders itself; leave out model, backend and read_only.")
        return Client(str(address), key)
    from nnclr_hub.workbench import Encoders, Workbench

    return Workbench(Encoders(model, backend=backend), store.open_store(address, read_only))


def open_store(uri: str | Path, read_only: bool = False, *, memory: int | None = None) -> VectorStore:
    """Open a store as `nnclr_hub.store.open_store` does, or that of a server by its URL."""
    if is_server(uri):
        from nnclr_hub.client.client import Client

        return Client(str(uri)).store
    return store.open_store(uri, read_only, memory=memory)


def is_server(address: str | Path) -> bool:
    """Return whether an address is the URL of a server."""
    return isinstance(address, str) and address.startswith(("http://", "https://"))
