"""The codes of the library's errors, which programs rely on, and the tree drawn in their module."""

import inspect

from nnclr_hub import errors

# code -> class; REST answers and `--json` output carry these codes, so a code never changes
CODES = {
    "answer_too_large": "AnswerTooLarge",
    "changes_unavailable": "ChangesUnavailable",
    "checkpoint_error": "CheckpointError",
    "collection_exists": "CollectionExists",
    "metadata_conflict": "MetadataConflict",
    "collection_not_found": "CollectionNotFound",
    "deadline_exceeded": "DeadlineExceeded",
    "disk_full": "DiskFull",
    "error": "NNCLRHubError",
    "fingerprint_mismatch": "FingerprintMismatch",
    "image_too_expensive": "ImageTooExpensive",
    "image_too_large": "ImageTooLarge",
    "invalid_filter": "InvalidFilter",
    "invalid_request": "InvalidRequest",
    "item_not_found": "ItemNotFound",
    "job_not_found": "JobNotFound",
    "missing_dependency": "MissingDependency",
    "model_error": "ModelError",
    "model_files_missing": "ModelFilesMissing",
    "model_too_new": "ModelTooNew",
    "no_images": "NoImages",
    "no_room": "NoRoom",
    "not_ready": "NotReady",
    "out_of_memory": "OutOfMemory",
    "overloaded": "Overloaded",
    "port_in_use": "PortInUse",
    "probe_exists": "ProbeExists",
    "probe_not_found": "ProbeNotFound",
    "inspection_not_found": "InspectionNotFound",
    "publishing_error": "PublishingError",
    "read_only": "OpenedForReading",
    "request_too_large": "RequestTooLarge",
    "request_too_slow": "RequestTooSlow",
    "run_exists": "RunExists",
    "run_not_found": "RunNotFound",
    "server_unreachable": "ServerUnreachable",
    "service_error": "ServiceError",
    "store_closed": "StoreClosed",
    "store_corrupt": "StoreCorrupt",
    "store_error": "StoreError",
    "store_locked": "StoreLocked",
    "store_read_only": "StoreReadOnly",
    "store_too_new": "StoreTooNew",
    "store_unreachable": "StoreUnreachable",
    "tampered_model": "TamperedModel",
    "training_diverged": "TrainingDiverged",
    "training_error": "TrainingError",
    "unauthorized": "Unauthorized",
    "undecodable_image": "ImageError",
    "unknown_model": "UnknownModel",
    "unknown_recipe": "UnknownRecipe",
    "unknown_setting": "UnknownSetting",
    "unsupported_image": "UnsupportedImage",
    "weights_mismatch": "WeightsMismatch",
}


# programs may register further classes
OURS = {code: kind for code, kind in errors.BY_CODE.items() if kind.__module__ == errors.__name__}


def test_no_code_changes():
    assert {code: kind.__name__ for code, kind in OURS.items()} == CODES
    assert all(kind.code == code for code, kind in OURS.items())


def test_every_error_is_in_the_diagram_and_has_a_docstring():
    drawn = (errors.__doc__ or "").split()
    for kind in OURS.values():
        assert kind.__name__ in drawn
        assert inspect.cleandoc(kind.__doc__ or "").startswith(("Raised when ", "Base class "))
