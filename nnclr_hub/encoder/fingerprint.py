"""The fingerprint that identifies the vectors of an encoder."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn

from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.hub.layout import ModelConfig


def fingerprint_of(backbone: nn.Module, preprocessing: Preprocessing, config: ModelConfig | None) -> str:
    """Return 32 hex digits of the SHA-256 of weights, network and preprocessing.

    Vectors with equal fingerprints are comparable.
    """
    # the default crop is left out, so that fingerprints from before the other modes existed stay valid
    steps = {name: value for name, value in vars(preprocessing).items() if (name, value) != ("crop_mode", "center")}
    digest = hashlib.sha256(json.dumps(steps, sort_keys=True).encode())
    hash_state(digest, backbone)
    # equal weights with another architecture or other arguments are another network
    if config is not None:
        network: Any = [config.architecture, dict(config.model_args), config.global_pool]
    else:
        network = getattr(backbone, "pretrained_cfg", {}).get("architecture")
    digest.update(json.dumps(network, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def hash_state(digest: hashlib._Hash, network: nn.Module) -> None:
    """Add names, types, shapes and values of a network's state to a hash."""
    for key, value in sorted(network.state_dict().items()):
        value = value.detach().cpu().contiguous()
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
