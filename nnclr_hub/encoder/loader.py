"""Load an encoder from any source: a name, a folder, the Hub, timm, random weights, or a file of yours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nnclr_hub.encoder.backbones import create_backbone, load_state
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.encoder.wrapped import SCHEME, load_from_file
from nnclr_hub.hub.layout import read_weights
from nnclr_hub.hub.sources import resolve


def load_encoder(
    source: str | Path, *, device: str | None = None, backend: str = "torch", precision: str | None = None
) -> Encoder:
    """Load and verify an encoder from any source that `nnclr_hub.hub.sources` supports.

    Args:
        source: a registered name, hf-hub:org/repo@rev, a model folder, timm:NAME, random:ARCH@SEED, ...; or
            python:FILE.py:NAME, which runs a file of yours and ignores the other arguments (`encoder.wrapped`).
        device: None: the GPU if there is one.
        backend: the library that runs the network: "torch", whose vectors equal timm's to 1e-5; "openvino",
            "openvino-bf16", "onnx", "compile", ...; or "auto" for the fastest one on this machine whose vectors have a
            cosine of 0.999 or more to torch's.
        precision: "fp32" or "bf16", unless the backend's name contains it; None: fp32, or any under "auto".

    Raises:
        UnknownModel, ModelFilesMissing: the source or its files do not exist.
        TamperedModel, WeightsMismatch: the files differ from what was recorded, or do not fit the architecture.
        InvalidRequest: the source is invalid, the device does not exist, or the backend cannot run the network.
        MissingDependency: the backend's package is not installed.
    """
    options: dict[str, Any] = {"name": str(source), "device": device, "backend": backend, "precision": precision}
    if str(source).startswith(SCHEME):
        return load_from_file(str(source))
    found = resolve(str(source))
    if found.folder is None:
        return _load_from_timm(found.architecture, found.seed, options)
    config = found.config
    preprocessing = Preprocessing.from_pretrained_cfg(config.pretrained_cfg)
    with torch.random.fork_rng(devices=[]):  # building fresh weights must not advance the caller's generator
        if found.seed is not None:
            torch.manual_seed(found.seed)
            config = replace(config, nnclr={})  # its records describe the trained weights only
        backbone = create_backbone(config.architecture, model_args=config.model_args)
    if found.seed is None:
        load_state(backbone, read_weights(found.folder, found.weights), str(source))
    return Encoder(backbone, preprocessing, config=config, **options)


def _load_from_timm(architecture: str, seed: int | None, options: dict[str, Any]) -> Encoder:
    """Load timm's own weights, or random ones from a seed, without advancing the global generator."""
    if seed is None:
        backbone = create_backbone(architecture, pretrained=True)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = create_backbone(architecture)
    return Encoder(backbone, Preprocessing.from_pretrained_cfg(backbone.pretrained_cfg), **options)  # type: ignore[arg-type]
