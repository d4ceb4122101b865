"""Load an encoder from any source: a name, a folder, the Hub, timm, random weights, or a file of yours."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.arguments import checked
from nnclr_hub.encoder.backends import (
    Backend,
    default_backend,
    graph_backends,
    open_backend,
    open_graph,
    parse_backend,
)
from nnclr_hub.encoder.backends.base import AUTO
from nnclr_hub.encoder.descriptors import Appended
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.fingerprint import fingerprint_of, fingerprint_of_arrays
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import InvalidRequest, MissingDependency, NNCLRHubError, TamperedModel
from nnclr_hub.hub.layout import ABOUT_GRAPH, CONFIG, GRAPH, WEIGHTS, ModelConfig, read_arrays, read_weights
from nnclr_hub.hub.sources import PYTHON, Pins, Resolved, resolve, split_appended, split_reading
from nnclr_hub.images.reading import ImageReading

if TYPE_CHECKING:
    import torch
    from torch import nn

log = logging.getLogger(__name__)

# a driver of NVIDIA, natively or under WSL; without one, torch need not be imported to look for a GPU
DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


@checked
def load_encoder(
    source: str | Path,
    *,
    device: str | torch.device | None = None,
    backend: str | None = None,
    precision: str | None = None,
    reading: ImageReading | None = None,
) -> Encoder:
    """Load and verify an encoder from any source that `nnclr_hub.hub.sources` supports.

    A model folder with network.onnx embeds in OpenVINO or ONNX Runtime without torch and timm, which are imported only
    for feature maps, attention and tensors. Where torch is not installed, network.onnx is used whatever the backend.

    Args:
        source: a registered name, hf-hub:org/repo@rev, a model folder, timm:NAME, random:ARCH@SEED, ...; or
            python:FILE.py:NAME, which runs a file of yours and ignores the other arguments (`encoder.wrapped`).
            With +shape, +color or both, its vectors also describe shapes and colors (`encoder.descriptors`).
        device: None: the GPU if there is one.
        backend: the library that runs the network: "torch", "openvino", "openvino-bf16", "onnx", "compile", ...; or
            "auto", which follows a rule (`backends.rule`). All vectors have a cosine of 0.9999 or more to torch's.
            None: the environment variable NNCLR_BACKEND, or "auto".
        precision: "fp32" or "bf16", unless the backend's name contains it; None: fp32, or any under "auto".
        reading: the page and the channels to read of each file; None: as in the source, or as in training.

    Raises:
        UnknownModel, ModelFilesMissing: the source or its files do not exist.
        TamperedModel, WeightsMismatch: the files differ from what was recorded, or do not fit the architecture.
        InvalidRequest: the source is invalid, the device does not exist, or the backend cannot run the network.
        MissingDependency: the backend's package is not installed.
    """
    backend = backend or default_backend()
    parse_backend(backend, precision)
    plain, parts = split_appended(str(source))
    if parts:
        encoder = load_encoder(plain, device=device, backend=backend, precision=precision, reading=reading)
        _append(encoder, Appended(parts))
        return encoder
    plain, text = split_reading(plain)
    given, reading = reading, reading or ImageReading.parse(text)
    if plain.startswith(PYTHON):
        from nnclr_hub.encoder.wrapped import load_from_file

        encoder = load_from_file(plain)
        transform = encoder.transform
        transform.preprocessing = replace(transform.preprocessing, reading=reading)
        encoder.name = reading.within(encoder.name)
        return encoder
    opener = partial(open_backend, backend, precision=precision)
    found = resolve(plain)
    if found.folder is None:
        backbone = _timm_backbone(found.architecture, found.seed)
        published = Preprocessing.from_pretrained_cfg(backbone.pretrained_cfg)  # type: ignore[arg-type]
        preprocessing = replace(published, reading=reading)
        return Encoder(backbone, preprocessing, name=reading.within(plain), device=device, backend=opener)
    config = found.config if found.seed is None else replace(found.config, nnclr={})  # it describes trained weights
    preprocessing = Preprocessing.of_model(config)
    reading = given or ImageReading.parse(text, preprocessing.reading)
    preprocessing = replace(preprocessing, reading=reading)
    options: dict[str, Any] = {"name": reading.within(plain), "config": config}
    if _runs_on_cpu(device) and (ready := _open_graph(found, config, backend, precision)) is not None:
        opened, about = ready
        build = partial(_rebuild, found, config, about["fingerprint"])
        return Encoder(build, preprocessing, backend=opened, device="cpu", about=about, **options)
    return Encoder(_build(found, config), preprocessing, backend=opener, device=device, **options)


def _append(encoder: Encoder, parts: Appended) -> None:
    if encoder.transform.preprocessing.in_chans != 3 or not isinstance(encoder.transform, EvalTransform):
        raise InvalidRequest(
            f"Nothing can be appended to {encoder.name}: its crops are not RGB pixels. Name it without "
            f"+{'+'.join(parts.names)}."
        )
    encoder.appended = parts
    encoder.name = encoder.reading.within("+".join([split_reading(encoder.name)[0], *parts.names]))


def _runs_on_cpu(device: str | torch.device | None) -> bool:
    return device == "cpu" or (device is None and sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)))


def _open_graph(
    found: Resolved, config: ModelConfig, name: str, precision: str | None
) -> tuple[Backend, Mapping[str, Any]] | None:
    """Return the backend that runs the folder's network.onnx, and what it records of it; None if torch has to.

    The graph contains the colors of its preprocessing, so it is used only with the preprocessing, weights and
    architecture that it was exported with.
    """
    assert found.folder is not None
    names = graph_backends(name, precision)
    if not names or found.seed is not None or found.weights != WEIGHTS or GRAPH not in config.sha256:
        return None
    Pins(CONFIG, {GRAPH: config.sha256[GRAPH]}).check(found.folder)
    about = {field: config.nnclr["graph"][field] for field in ABOUT_GRAPH}
    colors = Preprocessing.from_pretrained_cfg(config.pretrained_cfg)
    if fingerprint_of_arrays(read_arrays(found.folder), colors, config) != about["fingerprint"]:
        log.warning("%s is not used: it does not belong to the other files of %s", GRAPH, found.folder)
        return None
    for one in names:
        try:
            return open_graph(one, found.folder / GRAPH, about["weight_bytes"]), about
        except (NNCLRHubError, OSError) as error:
            if name != AUTO and find_spec("torch"):
                raise
            log.info("%s cannot run %s: %s", one, found.folder, error)  # torch does
    return None


def require_torch(name: str) -> None:
    """Check that torch and timm are installed.

    Raises:
        MissingDependency: they are not.
    """
    if missing := [package for package in ("torch", "timm") if not find_spec(package)]:
        raise MissingDependency(
            f"{name} needs {' and '.join(missing)} for this; pip install 'nnclr_hub[torch]'. Without, a model folder "
            f"with {GRAPH} embeds images."
        )


def _rebuild(found: Resolved, config: ModelConfig, fingerprint: str) -> nn.Module:
    backbone = _build(found, config)
    if fingerprint_of(backbone, Preprocessing.from_pretrained_cfg(config.pretrained_cfg), config) != fingerprint:
        raise TamperedModel(f"The weights in {found.folder} have changed since the encoder was loaded; load it again.")
    return backbone


def _build(found: Resolved, config: ModelConfig) -> nn.Module:
    """Build the network of a model folder in torch, with its weights or with random ones."""
    require_torch(str(found.folder))
    import torch

    from nnclr_hub.encoder.backbones import backbone_with_weights, create_backbone

    assert found.folder is not None
    if found.seed is None:
        state = read_weights(found.folder, found.weights)
        return backbone_with_weights(config.architecture, state, str(found.folder), model_args=config.model_args)
    with torch.random.fork_rng(devices=[]):  # building fresh weights must not advance the caller's generator
        torch.manual_seed(found.seed)
        return create_backbone(config.architecture, model_args=config.model_args)


def _timm_backbone(architecture: str, seed: int | None) -> nn.Module:
    """Return timm's own weights, or random ones from a seed, without advancing the global generator."""
    require_torch(architecture)
    import torch

    from nnclr_hub.encoder.backbones import create_backbone

    if seed is None:
        return create_backbone(architecture, pretrained=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return create_backbone(architecture)
