"""Every error that the library raises on purpose.

    NNCLRHubError                   the base class: catch this one to catch them all
    ├── InvalidRequest              an invalid argument (also a ValueError)
    │   ├── InvalidFilter
    │   ├── UnknownRecipe
    │   ├── UnknownSetting
    │   └── NoImages
    ├── ImageError                  one image cannot be read
    │   ├── UnsupportedImage
    │   ├── ImageTooLarge
    │   └── ImageTooExpensive
    ├── ModelError                  an encoder cannot be loaded or published
    │   ├── UnknownModel
    │   ├── ModelFilesMissing
    │   ├── TamperedModel
    │   ├── ModelTooNew
    │   ├── WeightsMismatch
    │   └── PublishingError
    ├── StoreError                  the vector store refuses an operation
    │   ├── CollectionNotFound
    │   ├── CollectionExists
    │   ├── MetadataConflict
    │   ├── ChangesUnavailable
    │   ├── ItemNotFound
    │   ├── ProbeNotFound
    │   ├── InspectionNotFound
    │   ├── ProbeExists
    │   ├── FingerprintMismatch
    │   ├── StoreLocked
    │   ├── StoreReadOnly
    │   │   ├── OpenedForReading
    │   │   └── StoreClosed
    │   ├── StoreTooNew
    │   ├── StoreCorrupt
    │   ├── DiskFull
    │   └── StoreUnreachable
    ├── TrainingError               a pretraining run cannot start or continue
    │   ├── RunExists
    │   ├── CheckpointError
    │   ├── TrainingDiverged
    │   ├── OutOfMemory
    │   └── NoRoom
    ├── ServiceError                the server cannot handle a request now
    │   ├── NotReady
    │   ├── Overloaded
    │   ├── DeadlineExceeded
    │   ├── JobNotFound
    │   ├── RunNotFound
    │   ├── RequestTooLarge
    │   │   └── AnswerTooLarge
    │   ├── RequestTooSlow
    │   ├── Unauthorized
    │   ├── ServerUnreachable
    │   └── PortInUse
    └── MissingDependency           an optional package is not installed

A message says what happened, with the value that caused it, and then what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

BY_CODE: dict[str, type[NNCLRHubError]] = {}  # each class registers itself under its code


class NNCLRHubError(Exception):
    """Base class of the library's errors.

    `code` is the stable name of a class for programs; REST answers carry it. It is the class's name in snake case,
    unless the class sets another one.
    """

    code: ClassVar[str] = "error"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
        BY_CODE[cls.code] = cls


BY_CODE[NNCLRHubError.code] = NNCLRHubError


class MissingDependency(NNCLRHubError):
    """Raised when an optional package is not installed; the message names the extra that installs it."""


# module -> the extra that installs it
EXTRAS = {
    **dict.fromkeys(("torch", "torchvision", "timm", "matplotlib", "onnx", "onnxscript"), "torch"),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn", "pydantic", "pydantic_settings"), "serve"),
    **dict.fromkeys(("prometheus_client", "python_multipart", "opentelemetry"), "serve"),
    **dict.fromkeys(("gradio", "skimage"), "demo"),
    **dict.fromkeys(("ray", "pymilvus", "milvus_lite"), "scale"),
    **dict.fromkeys(("pydicom", "rawpy", "tifffile", "imagecodecs", "nd2", "czifile", "pillow_heif"), "formats"),
    "pyarrow": "formats",
    "tensorboard": "train",
}
ALONE = {"openvino": "openvino", "openTSNE": "openTSNE", "wandb": "wandb", "mlflow": "mlflow-skinny"}


def missing_package(error: ImportError) -> MissingDependency | None:
    """Return the error of a failed import that says what to install; None for packages that nnclr_hub does not know."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS and package not in ALONE:
        return None
    absent = isinstance(error, ModuleNotFoundError)
    reason = "which is not installed" if absent else f"which cannot be imported ({error})"
    install = ALONE.get(package) or f"'nnclr_hub[{EXTRAS[package]}]'"
    return MissingDependency(f"This needs the package {package}, {reason}; pip install {install}.")


# ---- arguments -------------------------------------------------------------------------------------------------------


class InvalidRequest(NNCLRHubError, ValueError):
    """Raised when an argument is invalid; the message names it and its valid values."""


class InvalidFilter(InvalidRequest):
    """Raised when a `where` filter cannot be parsed."""


class UnknownRecipe(InvalidRequest):
    """Raised when a pretraining recipe does not exist."""


class UnknownSetting(InvalidRequest):
    """Raised when a recipe does not have a setting, or the setting does not accept a value."""


class NoImages(InvalidRequest):
    """Raised when a folder does not contain an image in a supported format."""


# ---- images ----------------------------------------------------------------------------------------------------------


class ImageError(NNCLRHubError):
    """Raised when one image cannot be read; the other images of its batch are not affected."""

    code = "undecodable_image"

    def for_image(self, image: object, index: int) -> ImageError:
        """Return the same error with the image's path in its message, or its number if it has no path."""
        which = str(image) if isinstance(image, str | Path) else f"number {index}"
        return type(self)(f"Image {which}: {self}")


class UnsupportedImage(ImageError):
    """Raised when an image has an unsupported format or number of channels."""


class ImageTooLarge(ImageError):
    """Raised when an image has more pixels than the limit."""


class ImageTooExpensive(ImageError):
    """Raised when decoding an image takes more CPU time or memory than the limit."""


# ---- models ----------------------------------------------------------------------------------------------------------


class ModelError(NNCLRHubError):
    """Raised when an encoder cannot be loaded."""


class UnknownModel(ModelError):
    """Raised when a model name, repository or revision does not exist."""


class ModelFilesMissing(ModelError):
    """Raised when a file of a model folder is missing."""


class TamperedModel(ModelError):
    """Raised when the sha256 of a file differs from the pinned one."""


class ModelTooNew(ModelError):
    """Raised when a later version of the library wrote the model folder."""


class WeightsMismatch(ModelError):
    """Raised when the weights do not fit the architecture in config.json."""


class PublishingError(ModelError):
    """Raised when an encoder cannot be published, because of the Hub or of the repository's contents."""


# ---- the store -------------------------------------------------------------------------------------------------------


class StoreError(NNCLRHubError):
    """Raised when the vector store refuses an operation."""


class CollectionNotFound(StoreError):
    """Raised when a collection does not exist."""


class CollectionExists(StoreError):
    """Raised when a collection of the same name exists with another specification."""


class MetadataConflict(StoreError):
    """Raised when the metadata of an item is not what a conditional edit expects; nothing was changed.

    `conflicts` has the present values of the expected keys by item id; None: the item does not have the key.
    """

    def __init__(self, message: str, conflicts: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.conflicts = dict(conflicts or {})


class ChangesUnavailable(StoreError):
    """Raised when the log of changes does not reach back to a number; read the whole collection instead."""


class ItemNotFound(StoreError):
    """Raised when a collection does not contain an item id."""


class ProbeNotFound(StoreError):
    """Raised when a probe does not exist."""


class InspectionNotFound(StoreError):
    """Raised when a collection has no inspection, or not the one that is named."""


class ProbeExists(StoreError):
    """Raised when a probe of the same name exists."""


class FingerprintMismatch(StoreError):
    """Raised when vectors come from another encoder than those of the collection."""


class StoreLocked(StoreError):
    """Raised when another process has the store open for writing."""


class StoreReadOnly(StoreError):
    """Raised when a write reaches a store that is read-only, for example after an I/O error."""


class OpenedForReading(StoreReadOnly):
    """Raised when a write reaches a store that was opened read-only."""

    code = "read_only"

    def __init__(
        self, message: str = "The store is open read-only; restart without --read-only (read_only=True) to modify it."
    ) -> None:
        super().__init__(message)


class StoreClosed(StoreReadOnly):
    """Raised when a closed store or collection is used."""


class StoreTooNew(StoreError):
    """Raised when another version of the library wrote the store, in a format that this one does not read."""


class StoreCorrupt(StoreError):
    """Raised when a catalog, which holds the only copy of the data, is damaged."""


class DiskFull(StoreError):
    """Raised when the disk is full; nothing of the request was written."""


class StoreUnreachable(StoreError):
    """Raised when the server of a remote store does not answer in time."""


# ---- training --------------------------------------------------------------------------------------------------------


class TrainingError(NNCLRHubError):
    """Raised when a pretraining run cannot start or continue."""


class RunExists(TrainingError):
    """Raised when a run folder already contains a run."""


class CheckpointError(TrainingError):
    """Raised when a checkpoint is damaged, or was written by another recipe."""


class TrainingDiverged(TrainingError):
    """Raised when the loss or a weight becomes NaN or infinite."""


class OutOfMemory(TrainingError):
    """Raised when a step needs more memory than the device has; the message suggests a batch size that fits."""


class NoRoom(TrainingError):
    """Raised when the run folder or the cache folder cannot be written, or its disk has too little free space."""


# ---- the server ------------------------------------------------------------------------------------------------------


class ServiceError(NNCLRHubError):
    """Raised when the server cannot handle a request now."""


class NotReady(ServiceError):
    """Raised when the server is still loading, or restarts a worker that failed."""


class Overloaded(ServiceError):
    """Raised when the queue is full; `retry_after` is the number of seconds to wait before the next attempt."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineExceeded(ServiceError):
    """Raised when the deadline of a request passes before its answer is ready."""


class JobNotFound(ServiceError):
    """Raised when a job does not exist, or ended so long ago that its record was deleted."""


class RunNotFound(ServiceError):
    """Raised when a pretraining run does not exist, or does not have a report yet."""


class RequestTooLarge(ServiceError):
    """Raised when a request contains too many bytes or images."""


class AnswerTooLarge(RequestTooLarge):
    """Raised when the answer would have more bytes than the server sends; the message has both numbers."""


class RequestTooSlow(ServiceError):
    """Raised when the body of a request does not arrive in time."""


class Unauthorized(ServiceError):
    """Raised when the server requires an API key and the client sent a wrong one or none."""


class ServerUnreachable(ServiceError):
    """Raised when no server, or another program, answers at the address."""


class PortInUse(ServiceError):
    """Raised when another program listens on the port."""
