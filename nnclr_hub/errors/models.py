"""Encoders that cannot be had."""

from __future__ import annotations

from nnclr_hub.errors.root import NNCLRHubError


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
