"""The client of `nnclr serve`: the library's verbs, performed by a server.

    with Client("http://127.0.0.1:8000") as client:
        vectors = client.embed(["cat.jpg", "dog.jpg"])                 # (2, D) float32, unit rows
        client.create_collection("photos")
        client.collection("photos").index_folder("photos")
        client.collection("photos").search(image="query.jpg", k=5)

    async with AsyncClient("http://127.0.0.1:8000") as client:
        vectors = await client.embed(["cat.jpg", "dog.jpg"])

Results are the library's dataclasses and arrays, errors are its exceptions. Temporary refusals (429, 503) and lost
connections are retried until the timeout. An item has the id that its image has, so a retry never adds an image twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnclr_hub.lazy_names import lazy_names

__all__ = ["AsyncClient", "Client", "open_bench", "open_store"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"addresses": ("open_bench", "open_store"), "async_client": ("AsyncClient",), "client": ("Client",)},
)

if TYPE_CHECKING:
    from nnclr_hub.client.addresses import open_bench, open_store
    from nnclr_hub.client.async_client import AsyncClient
    from nnclr_hub.client.client import Client
