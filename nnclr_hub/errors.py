"""Every error that the library raises on purpose.

    NNCLRHubError                   the root: catch this to catch them all
    ├── InvalidRequest              an argument makes no sense (also a ValueError)
    │   ├── InvalidFilter           a `where` that cannot be read
    │   ├── UnknownRecipe           no pretraining recipe of that name
    │   ├── UnknownSetting          no setting of that name, or a value it cannot take
    │   └── NoImages                a folder without a single picture in it
    ├── ImageError                  one picture cannot be read
    │   ├── UnsupportedImage        a format or channel count outside the list
    │   └── ImageTooLarge           more pixels than the limit
    ├── ModelError                  an encoder cannot be had
    │   ├── UnknownModel            no such name, repository or revision
    │   ├── ModelFilesMissing       a file of the model folder is not there
    │   ├── TamperedModel           a file's sha256 is not the pinned one
    │   ├── ModelTooNew             config.json was written by a later version
    │   ├── WeightsMismatch         the weights do not fit the architecture
    │   └── PublishingError         the Hub, or what it holds already, does not let an encoder be published
    ├── StoreError                  the vector store refuses
    │   ├── CollectionNotFound
    │   ├── CollectionExists
    │   ├── ItemNotFound
    │   ├── ProbeNotFound
    │   ├── ProbeExists
    │   ├── FingerprintMismatch     vectors of another encoder
    │   ├── StoreLocked             another process writes to this folder
    │   ├── StoreReadOnly           opened for reading, or made read-only by an I/O error
    │   ├── StoreTooNew             written by a later version
    │   ├── StoreCorrupt            the catalog itself is damaged
    │   ├── DiskFull                nothing was written
    │   └── StoreUnreachable        the server that holds the store is gone, or too slow
    ├── TrainingError               a pretraining run cannot go on
    │   ├── RunExists               the run folder is taken
    │   ├── CheckpointError         a checkpoint is damaged or of another recipe
    │   ├── TrainingDiverged        the loss is no longer a number
    │   ├── OutOfMemory             a step does not fit into the device
    │   └── NoRoom                  the disk cannot hold the decoded pictures
    ├── ServiceError                the server cannot take this now
    │   ├── NotReady                still loading
    │   ├── Overloaded              the queue is full; `retry_after` says when to come back
    │   │   └── RateLimited         this caller has used up what it may send in a minute
    │   ├── DeadlineExceeded        the answer would have come too late
    │   ├── JobNotFound
    │   ├── RequestTooLarge         too many bytes or pictures in one request
    │   ├── RequestTooSlow          its body did not come in time
    │   ├── ServerUnreachable       no server of ours answers at the address
    │   └── PortInUse               another program listens there
    └── MissingDependency           an optional package is not installed

A message says what happened, what was given, and what to do about it, in one sentence that a user
can read. `code` is the stable name of the class for programs (REST answers carry it).
"""

from __future__ import annotations

from typing import ClassVar


class NNCLRHubError(Exception):
    """The root of the library's errors."""

    code: ClassVar[str] = "error"


# ------------------------------------------------------------------------------ requests


class InvalidRequest(NNCLRHubError, ValueError):
    """An argument makes no sense; the message names it and what it may be."""

    code = "invalid_request"


class InvalidFilter(InvalidRequest):
    """A `where` filter that cannot be read."""

    code = "invalid_filter"


class UnknownRecipe(InvalidRequest):
    """No pretraining recipe of that name."""

    code = "unknown_recipe"


class UnknownSetting(InvalidRequest):
    """No setting of that name in the recipe, or a value that it cannot take."""

    code = "unknown_setting"


class NoImages(InvalidRequest):
    """A folder that holds no picture in a format we read."""

    code = "no_images"


# ------------------------------------------------------------------------------ pictures


class ImageError(NNCLRHubError):
    """One picture cannot be read; the others of its batch are not concerned."""

    code = "undecodable_image"


class UnsupportedImage(ImageError):
    """A picture in a format, or with a number of channels, that we do not read."""

    code = "unsupported_image"


class ImageTooLarge(ImageError):
    """A picture with more pixels than the limit."""

    code = "image_too_large"


# ------------------------------------------------------------------------------ models


class ModelError(NNCLRHubError):
    """An encoder cannot be had."""

    code = "model_error"


class UnknownModel(ModelError):
    """No model of that name, repository or revision."""

    code = "unknown_model"


class ModelFilesMissing(ModelError):
    """A file of the model folder is not there."""

    code = "model_files_missing"


class TamperedModel(ModelError):
    """A file's sha256 is not the one that was pinned."""

    code = "tampered_model"


class ModelTooNew(ModelError):
    """The model folder was written by a later version of the library."""

    code = "model_too_new"


class WeightsMismatch(ModelError):
    """The weights do not fit the architecture that config.json names."""

    code = "weights_mismatch"


class PublishingError(ModelError):
    """The Hub, or what it holds already, does not let an encoder be published."""

    code = "publishing_error"


# ------------------------------------------------------------------------------ store


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


class StoreLocked(StoreError):
    """Another process has the store open for writing."""

    code = "store_locked"


class StoreReadOnly(StoreError):
    """The store was opened for reading, or became read-only after an I/O error."""

    code = "store_read_only"


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


# ------------------------------------------------------------------------------ training


class TrainingError(NNCLRHubError):
    """A pretraining run cannot start or go on."""

    code = "training_error"


class RunExists(TrainingError):
    """The run folder holds a run already."""

    code = "run_exists"


class CheckpointError(TrainingError):
    """A checkpoint is damaged, or belongs to another recipe."""

    code = "checkpoint_error"


class TrainingDiverged(TrainingError):
    """The loss is no longer a number."""

    code = "training_diverged"


class OutOfMemory(TrainingError):
    """A step needs more memory than the device has; the message names a batch that fits."""

    code = "out_of_memory"


class NoRoom(TrainingError):
    """The disk cannot hold the decoded pictures."""

    code = "no_room"


# ------------------------------------------------------------------------------ service


class ServiceError(NNCLRHubError):
    """The server cannot take this request now."""

    code = "service_error"


class NotReady(ServiceError):
    """The server is still loading, or its worker has failed and is being restarted."""

    code = "not_ready"


class Overloaded(ServiceError):
    """The queue is full; `retry_after` is the number of seconds after which it is worth trying again."""

    code = "overloaded"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimited(Overloaded):
    """The caller sent more in the last minute than it may; `retry_after` says when to come back."""

    code = "rate_limited"


class DeadlineExceeded(ServiceError):
    """The request waited in the queue until its deadline had passed."""

    code = "deadline_exceeded"


class JobNotFound(ServiceError):
    """No job of that id, or one that ended long ago."""

    code = "job_not_found"


class RequestTooLarge(ServiceError):
    """Too many bytes or pictures in one request."""

    code = "request_too_large"


class RequestTooSlow(ServiceError):
    """The body of a request did not come in time."""

    code = "request_too_slow"


class ServerUnreachable(ServiceError):
    """No server answers at the address, or something else does."""

    code = "server_unreachable"


class PortInUse(ServiceError):
    """Another program listens on the port."""

    code = "port_in_use"


class MissingDependency(NNCLRHubError):
    """An optional package is not installed; the message names the extra that brings it."""

    code = "missing_dependency"
