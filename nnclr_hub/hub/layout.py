"""The model folder: a set of files that timm, transformers, torch.hub and this library load.

config.json                timm's layout, plus the block "nnclr"
model.safetensors          the bare timm state dict
nnclr_heads.safetensors    projection and prediction heads, to continue pretraining
network.onnx               optional: the network in ONNX, whose weights are byte ranges of model.safetensors
README.md                  the model card
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.errors import ModelFilesMissing, ModelTooNew, WeightsMismatch
from nnclr_hub.json_text import is_utf8, parse_json

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
HEADS = "nnclr_heads.safetensors"
GRAPH = "network.onnx"
CARD = "README.md"
FORMAT_VERSION = 1
OPTIONAL = (HEADS, GRAPH)  # further files whose hashes config.json may record
# fields of the block nnclr that are objects
TABLES = ("sha256", "metrics", "rechecked", "commands", "measured_on", "splits", "converted", "graph")
TEST, VALIDATION, HELD_OUT = "test", "validation", "held out"  # in "splits": where the metrics of a set are from
ABOUT_GRAPH = ("fingerprint", "embed_dim", "heads", "weight_bytes")
_DTYPES = {
    **{f"F{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"{kind}{bits}": f"<{kind.lower()}{bits // 8}" for kind in "IU" for bits in (8, 16, 32, 64)},
    "BOOL": "?",
}
# of timm's networks, which a state dict contains next to the parameters
BUFFERS = (".running_mean", ".running_var", ".num_batches_tracked", ".relative_position_index")
REQUIRED = {"architecture": str, "num_features": int, "pretrained_cfg": dict}


@dataclass(frozen=True)
class ModelConfig:
    """config.json.

    architecture: timm's name.
    model_args: arguments that differ from timm's defaults; written even if empty, because transformers needs it.
    num_features: D.
    global_pool: "avg" or "token".
    pretrained_cfg: timm's preprocessing and layer names.
    nnclr: provenance of the encoder, its metrics, and the sha256 of its weights.
    """

    architecture: str
    model_args: Mapping[str, Any]
    num_features: int
    global_pool: str
    pretrained_cfg: Mapping[str, Any]
    nnclr: Mapping[str, Any]

    @property
    def sha256(self) -> Mapping[str, str]:
        """Recorded sha256 of the weights and the optional files, by file name."""
        recorded = self.nnclr.get("sha256") or {}
        return {name: recorded[name] for name in (WEIGHTS, *OPTIONAL) if name in recorded}

    def to_json(self) -> str:
        """Return the text of the file; equal for equal models."""
        fields = {
            "architecture": self.architecture,
            "num_classes": 0,
            "num_features": self.num_features,
            "global_pool": self.global_pool,
            "model_args": dict(self.model_args),
            "dtype": "float32",  # transformers would compute in the precision of the file otherwise
            "pretrained_cfg": dict(self.pretrained_cfg),
            "nnclr": dict(self.nnclr),
        }
        return json.dumps(fields, indent=2, allow_nan=False) + "\n"


def read_config(folder: Path) -> ModelConfig:
    """Read the folder's config.json.

    Raises:
        ModelFilesMissing: it does not exist.
        ModelTooNew: a later version of the library wrote it.
        WeightsMismatch: it is invalid, or a field is missing or has another type.
    """
    path = require(folder, CONFIG)
    try:
        fields = parse_json(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        raise WeightsMismatch(f"{path} is damaged ({error}); download or export the model again.") from error
    if not isinstance(fields, dict):
        raise WeightsMismatch(f"{path} is not a JSON object; download or export the model again.")
    missing = [name for name, kind in REQUIRED.items() if not isinstance(fields.get(name), kind)]
    missing += [name for name in ("model_args", "nnclr") if not isinstance(fields.get(name) or {}, dict)]
    if missing:
        raise WeightsMismatch(
            f"{path} lacks {', '.join(missing)}, so it is not a model folder of nnclr_hub; export the model again."
        )
    ours = fields.get("nnclr") or {}
    version = ours.get("format_version", FORMAT_VERSION)
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise ModelTooNew(
            f"{path} was written by a later version of nnclr_hub (format {version}; this one reads up to "
            f"{FORMAT_VERSION}); update nnclr_hub."
        )
    if not isinstance(version, int) or not _is_block(ours):
        raise WeightsMismatch(f"The block nnclr in {path} is invalid; download or export the model again.")
    return ModelConfig(
        architecture=fields["architecture"],
        model_args=fields.get("model_args") or {},
        num_features=fields["num_features"],
        global_pool=fields.get("global_pool", "avg"),
        pretrained_cfg=fields["pretrained_cfg"],
        nnclr=ours,
    )


def _is_block(ours: Mapping[str, Any]) -> bool:
    if not all(isinstance(ours.get(name) or {}, dict) for name in TABLES):
        return False
    hashes, metrics, converted, graph = (ours.get(name) or {} for name in ("sha256", "metrics", "converted", "graph"))
    return (
        all(isinstance(one, str) and len(one) == 64 for one in hashes.values())
        and all(isinstance(one, int | float) and not isinstance(one, bool) for one in metrics.values())
        and (GRAPH not in hashes or graph.keys() >= {*ABOUT_GRAPH})
        and (not converted or {"from", "branch", "file", "sha256"} <= converted.keys())
    )


def read_weights(folder: Path, name: str = WEIGHTS) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file in the folder.

    Raises:
        ModelFilesMissing: it does not exist.
        WeightsMismatch: it is truncated, is not a safetensors file, or contains NaN or infinity.
    """
    from safetensors.torch import load_file

    path = require(folder, name)
    with _damage(path):
        tensors = load_file(path)
    for key, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise WeightsMismatch(f"{key} in {path} contains NaN or infinity; export another checkpoint.")
    return tensors


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Read the weights in the folder like `read_weights`, without torch; bfloat16 as float32."""
    import numpy as np
    from safetensors import deserialize

    path = require(folder, WEIGHTS)
    with _damage(path):
        read = deserialize(path.read_bytes())
    arrays = {}
    for key, one in read:
        if one["dtype"] == "BF16":  # the upper half of a float32
            values = (np.frombuffer(one["data"], "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(one["data"], _DTYPES.get(one["dtype"], "u1"))
        arrays[key] = values.reshape(one["shape"]) if one["dtype"] in (*_DTYPES, "BF16") else values
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise WeightsMismatch(f"{key} in {path} contains NaN or infinity; export another checkpoint.")
    return arrays


def tensor_ranges(path: Path) -> dict[str, tuple[str, int, int]]:
    """Return where the tensors of an intact safetensors file are: name -> dtype, offset and length in bytes."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    start = 8 + size
    return {
        key: (one["dtype"], start + one["data_offsets"][0], one["data_offsets"][1] - one["data_offsets"][0])
        for key, one in header.items()
    }


def parameter_count(folder: Path, name: str = WEIGHTS) -> int:
    """Return the number of trained values in a safetensors file; only its header is read."""
    from safetensors import safe_open

    path = require(folder, name)
    with _damage(path), safe_open(path, "numpy") as file:
        kept = [key for key in file.keys() if not key.endswith(BUFFERS)]  # noqa: SIM118
        return sum(math.prod(file.get_slice(key).get_shape()) for key in kept)


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Convert the errors of safetensors to WeightsMismatch."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        if not is_utf8(path):
            raise WeightsMismatch(f"{path} cannot be read: its path is not UTF-8. Rename its folder.") from error
        raise WeightsMismatch(f"{path} is damaged ({error}); download or export the model again.") from error


def require(folder: Path, name: str) -> Path:
    """Return the path of a file in the folder; raise ModelFilesMissing if it does not exist."""
    folder = Path(folder)
    if (path := folder / name).is_file():
        return path
    if not folder.is_dir():
        what = "is a file" if folder.is_file() else "does not exist"
        raise ModelFilesMissing(
            f"{folder} {what}; expected a model folder, as made by `nnclr export` or `nnclr download`."
        )
    if (folder / "encoder" / CONFIG).is_file():
        raise ModelFilesMissing(f"{folder} is a run folder; its model folder is {folder / 'encoder'}: name that.")
    raise ModelFilesMissing(
        f"{path} is missing; a model folder contains {CONFIG} and {WEIGHTS}. Download or export the model again."
    )


def sha256_of(path: Path) -> str:
    """Return the hex digest of a file; raise ModelFilesMissing if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelFilesMissing:
    why = error.strerror or type(error).__name__
    return ModelFilesMissing(f"{path} cannot be read ({why}); check its permissions, and the disk.")
