"""What tells one encoder's vectors from another's."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn

from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.hub.layout import ModelConfig


def fingerprint_of(backbone: nn.Module, preprocessing: Preprocessing, config: ModelConfig | None) -> str:
    """32 hex digits of the SHA-256 of weights, network and preprocessing: equal ones give comparable vectors."""
    # the usual crop is left out: vectors from before there were others are to stay comparable
    steps = {name: value for name, value in vars(preprocessing).items() if (name, value) != ("crop_mode", "center")}
    digest = hashlib.sha256(json.dumps(steps, sort_keys=True).encode())
    for key, value in sorted(backbone.state_dict().items()):
        value = value.detach().cpu().contiguous()
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    # equal weights under another architecture or other arguments make another network
    if config is not None:
        network: Any = [config.architecture, dict(config.model_args), config.global_pool]
    else:
        network = getattr(backbone, "pretrained_cfg", {}).get("architecture")
    digest.update(json.dumps(network, sort_keys=True).encode())
    return digest.hexdigest()[:32]
