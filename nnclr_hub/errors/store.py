"""What the vector store refuses."""

from __future__ import annotations

from nnclr_hub.errors.root import NNCLRHubError


class StoreError(NNCLRHubError):
    """The vector store refuses."""

    code = "store_error"


class CollectionNotFound(StoreError):
    """No collection of that name."""

    code = "collection_not_found"


class CollectionExists(StoreError):
    """A collection of that name is there already, with another specification."""

    code = "collection_exists"


class ItemNotFound(StoreError):
    """No item of that id in the collection."""

    code = "item_not_found"


class ProbeNotFound(StoreError):
    """No probe of that name."""

    code = "probe_not_found"


class ProbeExists(StoreError):
    """A probe of that name is there already."""

    code = "probe_exists"


class FingerprintMismatch(StoreError):
    """The vectors come from another encoder than the collection's."""

    code = "fingerprint_mismatch"


class CollectionMoving(StoreError):
    """Another process is about to let another collection take its place, or just has: nothing was acknowledged."""

    code = "collection_moving"


class StoreLocked(StoreError):
    """Another process has the store open for writing."""

    code = "store_locked"


class StoreReadOnly(StoreError):
    """The store is closed, or became read-only after an I/O error."""

    code = "store_read_only"


class OpenedForReading(StoreReadOnly):
    """The store was opened for reading: nothing can be added, changed or deleted."""

    code = "read_only"

    def __init__(
        self,
        message: str = "The store was opened for reading: search it as you like, but to add, change or delete anything "
        "whoever runs this has to start it without read-only.",
    ) -> None:
        super().__init__(message)


class StoreTooNew(StoreError):
    """The store was written by a later version of the library."""

    code = "store_too_new"


class StoreCorrupt(StoreError):
    """The catalog, which is the truth, is damaged."""

    code = "store_corrupt"


class DiskFull(StoreError):
    """The disk is full; nothing of the request was written."""

    code = "disk_full"


class StoreUnreachable(StoreError):
    """The server that holds the store does not answer, or not in time."""

    code = "store_unreachable"
