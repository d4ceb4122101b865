"""Items whose whole content follows from id and version, so that a single wrong byte shows."""

import zlib

import numpy as np

from nnclr_hub.store.base import Item

DIM = 16
JPEG = b"\xff\xd8\xff"  # how each thumbnail begins
LABELS = ("cat", "dog", "hen")


def item_of(id: str, version: int) -> Item:
    """Return the only item that may be stored under this id in this version."""
    rng = np.random.default_rng([zlib.crc32(id.encode()), version])
    vector = rng.normal(size=DIM).astype(np.float32)
    # some fill pages of their file alone, so that deleting them leaves pages that are given back
    thumbnail = JPEG + rng.bytes(int(rng.integers(1, 400)) if version % 2 else 30_000) if version % 3 else None
    metadata = {"version": version, "label": LABELS[version % 3], "noise": rng.bytes(8).hex() * int(rng.integers(1, 9))}
    return Item(id, vector / np.linalg.norm(vector), metadata, thumbnail)


def version_of(item: Item) -> int:
    """Return the version of an item, after checking that every part of it, also the thumbnail, belongs to it.

    Raises:
        AssertionError: it is a mixture, or was never written.
    """
    version = item.metadata.get("version")
    assert isinstance(version, int), f"{item.id} has metadata that nobody wrote: {item.metadata}"
    wanted = item_of(item.id, version)
    np.testing.assert_allclose(item.vector, wanted.vector, atol=1e-6, err_msg=f"vector of {item.id} v{version}")
    assert dict(item.metadata) == wanted.metadata, f"metadata of {item.id} v{version}"
    assert item.thumbnail == wanted.thumbnail, f"thumbnail of {item.id} v{version}"
    return version
