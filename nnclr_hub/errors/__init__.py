"""Every error that the library raises on purpose.

    NNCLRHubError                   the root: catch this to catch them all
    ├── InvalidRequest              an argument makes no sense (also a ValueError)
    │   ├── InvalidFilter           a `where` that cannot be read
    │   ├── UnknownRecipe           no pretraining recipe of that name
    │   ├── UnknownSetting          no setting of that name, or a value it cannot take
    │   └── NoImages                a folder without a single image in it
    ├── ImageError                  one image cannot be read
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
    │   ├── CollectionMoving        another process re-embeds it
    │   ├── StoreLocked             another process writes to this folder
    │   ├── StoreReadOnly           closed, or made read-only by an I/O error
    │   │   └── OpenedForReading    nothing can be added, changed or deleted
    │   ├── StoreTooNew             written by a later version
    │   ├── StoreCorrupt            the catalog itself is damaged
    │   ├── DiskFull                nothing was written
    │   └── StoreUnreachable        the server that holds the store is gone, or too slow
    ├── TrainingError               a pretraining run cannot go on
    │   ├── RunExists               the run folder is taken
    │   ├── CheckpointError         a checkpoint is damaged or of another recipe
    │   ├── TrainingDiverged        the loss is no longer a number
    │   ├── OutOfMemory             a step does not fit into the device
    │   └── NoRoom                  the disk cannot hold the decoded images
    ├── ServiceError                the server cannot take this now
    │   ├── NotReady                still loading
    │   ├── Overloaded              the queue is full; `retry_after` says when to come back
    │   │   └── RateLimited         this caller has used up what it may send in a minute
    │   ├── DeadlineExceeded        the answer would have come too late
    │   ├── JobNotFound
    │   ├── RunNotFound             no pretraining run of that name, or without a report
    │   ├── RequestTooLarge         too many bytes or images in one request
    │   ├── RequestTooSlow          its body did not come in time
    │   ├── Unauthorized            the server wants a key, and this was none
    │   ├── ServerUnreachable       no server of ours answers at the address
    │   └── PortInUse               another program listens there
    └── MissingDependency           an optional package is not installed

A message says what happened, what was given, and what to do about it, in one sentence that a user
can read. `code` is the stable name of the class for programs (REST answers carry it).
"""

from __future__ import annotations

from nnclr_hub.errors.models import (
    ModelError,
    ModelFilesMissing,
    ModelTooNew,
    PublishingError,
    TamperedModel,
    UnknownModel,
    WeightsMismatch,
)
from nnclr_hub.errors.pictures import ImageError, ImageTooLarge, UnsupportedImage
from nnclr_hub.errors.requests import InvalidFilter, InvalidRequest, NoImages, UnknownRecipe, UnknownSetting
from nnclr_hub.errors.root import MissingDependency, NNCLRHubError
from nnclr_hub.errors.service import (
    DeadlineExceeded,
    JobNotFound,
    NotReady,
    Overloaded,
    PortInUse,
    RateLimited,
    RequestTooLarge,
    RequestTooSlow,
    RunNotFound,
    ServerUnreachable,
    ServiceError,
    Unauthorized,
)
from nnclr_hub.errors.store import (
    CollectionExists,
    CollectionMoving,
    CollectionNotFound,
    DiskFull,
    FingerprintMismatch,
    ItemNotFound,
    OpenedForReading,
    ProbeExists,
    ProbeNotFound,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreReadOnly,
    StoreTooNew,
    StoreUnreachable,
)
from nnclr_hub.errors.training import CheckpointError, NoRoom, OutOfMemory, RunExists, TrainingDiverged, TrainingError

__all__ = [
    "CheckpointError",
    "CollectionExists",
    "CollectionMoving",
    "CollectionNotFound",
    "DeadlineExceeded",
    "DiskFull",
    "FingerprintMismatch",
    "ImageError",
    "ImageTooLarge",
    "InvalidFilter",
    "InvalidRequest",
    "ItemNotFound",
    "JobNotFound",
    "MissingDependency",
    "ModelError",
    "ModelFilesMissing",
    "ModelTooNew",
    "NNCLRHubError",
    "NoImages",
    "NoRoom",
    "NotReady",
    "OpenedForReading",
    "OutOfMemory",
    "Overloaded",
    "PortInUse",
    "ProbeExists",
    "ProbeNotFound",
    "PublishingError",
    "RateLimited",
    "RequestTooLarge",
    "RequestTooSlow",
    "RunExists",
    "RunNotFound",
    "ServerUnreachable",
    "ServiceError",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreReadOnly",
    "StoreTooNew",
    "StoreUnreachable",
    "TamperedModel",
    "TrainingDiverged",
    "TrainingError",
    "Unauthorized",
    "UnknownModel",
    "UnknownRecipe",
    "UnknownSetting",
    "UnsupportedImage",
    "WeightsMismatch",
]
