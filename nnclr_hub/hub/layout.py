"""The model folder: one set of files that timm, transformers, torch.hub and this library load.

config.json                timm's layout, with a block "nnclr" of our own
model.safetensors          the bare timm state dict
nnclr_heads.safetensors    projection and prediction heads, for going on with pretraining
nnclr_support_set.safetensors  if wished, the embeddings that were its neighbors in training
README.md                  the model card
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.errors import ModelFilesMissing, ModelTooNew, WeightsMismatch

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
HEADS = "nnclr_heads.safetensors"
SUPPORT_SET = "nnclr_support_set.safetensors"
CARD = "README.md"
FORMAT_VERSION = 1
BESIDE = (HEADS, SUPPORT_SET)  # what a folder may hold besides its weights, and vouch for
TABLES = ("sha256", "metrics", "rechecked", "commands", "measured_on", "converted")  # of the block nnclr
REQUIRED = {"architecture": str, "num_features": int, "pretrained_cfg": dict}


@dataclass(frozen=True)
class ModelConfig:
    """config.json.

    architecture: timm's name.
    model_args: arguments beside timm's defaults; always written, even when empty, for transformers needs it.
    num_features: D.
    global_pool: "avg" or "token".
    pretrained_cfg: timm's preprocessing and layer names.
    nnclr: how the encoder came to be, its metrics, and the sha256 of its weights.
    """

    architecture: str
    model_args: Mapping[str, Any]
    num_features: int
    global_pool: str
    pretrained_cfg: Mapping[str, Any]
    nnclr: Mapping[str, Any]

    @property
    def sha256(self) -> Mapping[str, str]:
        """What the folder says of its own weights and what lies beside them, by the file's name."""
        recorded = self.nnclr.get("sha256") or {}
        return {name: recorded[name] for name in (WEIGHTS, *BESIDE) if name in recorded}

    def to_json(self) -> str:
        """The file's text; the same for the same model."""
        fields = {
            "architecture": self.architecture,
            "num_classes": 0,
            "num_features": self.num_features,
            "global_pool": self.global_pool,
            "model_args": dict(self.model_args),
            "pretrained_cfg": dict(self.pretrained_cfg),
            "nnclr": dict(self.nnclr),
        }
        return json.dumps(fields, indent=2, allow_nan=False) + "\n"


def read_config(folder: Path) -> ModelConfig:
    """The folder's config.json.

    Raises:
        ModelFilesMissing: there is none.
        ModelTooNew: a later version of the library wrote it.
        WeightsMismatch: it cannot be read, or a field is missing or of another type.
    """
    path = require(folder, CONFIG)
    try:
        fields = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise WeightsMismatch(f"{path} is not valid JSON ({error}): fetch or export the model again.") from error
    if not isinstance(fields, dict):
        raise WeightsMismatch(f"{path} is not a JSON object: fetch or export the model again.")
    missing = [name for name, kind in REQUIRED.items() if not isinstance(fields.get(name), kind)]
    missing += [name for name in ("model_args", "nnclr") if not isinstance(fields.get(name) or {}, dict)]
    if missing:
        raise WeightsMismatch(f"{path} lacks {', '.join(missing)}: it is no model folder of ours; export it again.")
    _check_ours(path, fields.get("nnclr") or {})
    return ModelConfig(
        architecture=fields["architecture"],
        model_args=fields.get("model_args") or {},
        num_features=fields["num_features"],
        global_pool=fields.get("global_pool", "avg"),
        pretrained_cfg=fields["pretrained_cfg"],
        nnclr=fields.get("nnclr") or {},
    )


def _check_ours(path: Path, ours: Mapping[str, Any]) -> None:
    """Refuses a block of ours that this version cannot understand."""
    version = ours.get("format_version", FORMAT_VERSION)
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ModelTooNew(
            f"{path} was written by a later version of nnclr_hub (format {version}; this one reads up to "
            f"{FORMAT_VERSION}): update nnclr_hub."
        )
    if not isinstance(version, int) or not _is_block(ours):
        raise WeightsMismatch(f"{path} has a block nnclr that is none of ours: fetch or export the model again.")


def _is_block(ours: Mapping[str, Any]) -> bool:
    """Whether the fields that verification and the card read are of their types."""
    if not all(isinstance(ours.get(name) or {}, dict) for name in TABLES):
        return False
    hashes, metrics, converted = (ours.get(name) or {} for name in ("sha256", "metrics", "converted"))
    return (
        all(isinstance(one, str) and len(one) == 64 for one in hashes.values())
        and all(isinstance(one, int | float) and not isinstance(one, bool) for one in metrics.values())
        and (not converted or {"from", "branch", "file", "sha256"} <= converted.keys())
    )


def read_weights(folder: Path, name: str = WEIGHTS) -> dict[str, Tensor]:
    """The tensors of a safetensors file in the folder.

    Raises:
        ModelFilesMissing: it is not there.
        WeightsMismatch: it is cut off or no safetensors file, or holds NaN or infinity.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = require(folder, name)
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsMismatch(f"{path} is damaged ({error}): fetch or export the model again.") from error
    for key, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise WeightsMismatch(
                f"{key} in {path} holds NaN or infinity, and every vector would: export another checkpoint."
            )
    return tensors


def require(folder: Path, name: str) -> Path:
    """The path of a file of the folder.

    Raises:
        ModelFilesMissing: it is not there.
    """
    path = Path(folder) / name
    if not path.is_file():
        if not Path(folder).is_dir():
            what = "is a file and no model folder" if Path(folder).is_file() else "does not exist"
            raise ModelFilesMissing(f"{folder} {what}: give a model folder, as `nnclr export` or `download` makes it.")
        raise ModelFilesMissing(
            f"{path} is missing: a model folder holds {CONFIG} and {WEIGHTS}; fetch or export the model again."
        )
    return path


def sha256_of(path: Path) -> str:
    """Hex digest of a file.

    Raises:
        ModelFilesMissing: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelFilesMissing:
    why = error.strerror or type(error).__name__
    return ModelFilesMissing(f"{path} cannot be read ({why}): check that it is yours to read, and the disk.")
