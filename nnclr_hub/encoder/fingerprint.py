"""The fingerprint that identifies the vectors of an encoder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.hub.layout import ModelConfig
from nnclr_hub.images.reading import PLAIN, ImageReading

if TYPE_CHECKING:
    from torch import nn


def fingerprint_of(backbone: nn.Module, preprocessing: Preprocessing, config: ModelConfig | None) -> str:
    """Return 32 hex digits of the SHA-256 of weights, network and preprocessing.

    Vectors with equal fingerprints are comparable.
    """
    digest = _begin(preprocessing)
    hash_state(digest, backbone)
    return _end(digest, config, getattr(backbone, "pretrained_cfg", {}).get("architecture"))


def fingerprint_of_arrays(state: Mapping[str, np.ndarray], preprocessing: Preprocessing, config: ModelConfig) -> str:
    """Return the fingerprint of a model folder from its weights, without torch."""
    digest = _begin(preprocessing)
    for key, value in sorted(state.items()):
        # as an Encoder does, which casts its weights to float32
        plain = np.ascontiguousarray(value, np.float32 if value.dtype.kind == "f" else None)
        digest.update(f"{key} torch.{plain.dtype} {value.shape}".encode() + plain.tobytes())
    return _end(digest, config, None)


def hash_state(digest: hashlib._Hash, network: nn.Module) -> None:
    """Add names, types, shapes and values of a network's state to a hash."""
    import torch

    for key, value in sorted(network.state_dict().items()):
        value = value.detach().cpu().contiguous()
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())


def with_reading(fingerprint: str, reading: ImageReading) -> str:
    """Return the fingerprint of an encoder that reads a part of each file."""
    return fingerprint if reading == PLAIN else hashlib.sha256(f"{fingerprint}?{reading}".encode()).hexdigest()[:32]


def _begin(preprocessing: Preprocessing) -> hashlib._Hash:
    # the default crop is left out, so that fingerprints from before the other modes existed stay valid; a reading is
    # added by `with_reading`, so that an exported network serves all readings
    left_out = (("crop_mode", "center"), ("reading", preprocessing.reading))
    steps = {name: value for name, value in vars(preprocessing).items() if (name, value) not in left_out}
    return hashlib.sha256(json.dumps(steps, sort_keys=True).encode())


def _end(digest: hashlib._Hash, config: ModelConfig | None, architecture: str | None) -> str:
    # equal weights with another architecture or other arguments are another network
    network: Any = architecture
    if config is not None:
        network = [config.architecture, dict(config.model_args), config.global_pool]
    digest.update(json.dumps(network, sort_keys=True).encode())
    return digest.hexdigest()[:32]
