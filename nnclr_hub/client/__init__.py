"""The client of `nnclr serve`: what the library does, done by a server.

    with Client("http://127.0.0.1:8000") as client:
        vectors = client.embed(["cat.jpg", "dog.jpg"])                 # (2, D) float32, unit rows
        client.collections.create("photos")
        client.collection("photos").index_folder("photos")
        client.collection("photos").search(image="query.jpg", k=5)

    async with AsyncClient("http://127.0.0.1:8000") as client:
        vectors = await client.embed(["cat.jpg", "dog.jpg"])

Results are the library's own dataclasses and arrays, errors its own exceptions. What a server refuses for the moment
(429, 503) and what a connection loses is asked again, until the timeout; an upload carries an Idempotency-Key, so that
nothing is done twice.
"""

from nnclr_hub.client.clients import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
