"""A client of the server of a test module, and a collection to fill."""

from collections.abc import Iterator

import pytest

from nnclr_hub import Client


@pytest.fixture
def client(server) -> Iterator[Client]:
    with Client(server.url, timeout=120) as opened:
        yield opened


@pytest.fixture
def collection(client) -> Iterator:
    """Create an empty collection, and drop it afterwards."""
    client.create_collection("photos")
    yield client.collection("photos")
    client.store.drop("photos")
