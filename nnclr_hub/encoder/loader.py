"""Load an encoder from any source: a name, a folder, the Hub, timm, random weights, or a file of yours."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnclr_hub.encoder.appended import Appended, append_parts
from nnclr_hub.encoder.backends.base import AUTO, Backend, default_backend, full_name, parse_backend
from nnclr_hub.encoder.backends.choice import MIN_COSINE, candidates, open_backend
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.exported import RUNTIMES, DeferredBackbone, ExportedNetwork, find_exported, save_exported
from nnclr_hub.encoder.fingerprint import fingerprint_of
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import MissingDependency, NNCLRHubError, TamperedModel
from nnclr_hub.hub.layout import GRAPH, ModelConfig, read_weights
from nnclr_hub.hub.sources import PYTHON, Resolved, resolve, split_appended, split_reading
from nnclr_hub.images.reading import ImageReading

if TYPE_CHECKING:
    from torch import nn

# a driver of NVIDIA, natively or under WSL; without one, torch need not be imported to look for a GPU
DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def load_encoder(
    source: str | Path,
    *,
    device: str | None = None,
    backend: str | None = None,
    precision: str | None = None,
    images: int | None = None,
    reading: ImageReading | None = None,
) -> Encoder:
    """Load and verify an encoder from any source that `nnclr_hub.hub.sources` supports.

    A model folder with network.onnx embeds in OpenVINO or ONNX Runtime without torch and timm, which are imported only
    for feature maps, attention and tensors. A network without that file is exported once and cached where a backend is
    named, or "auto" expects many images. Where torch is not installed, network.onnx is used whatever the backend.

    Args:
        source: a registered name, hf-hub:org/repo@rev, a model folder, timm:NAME, random:ARCH@SEED, ...; or
            python:FILE.py:NAME, which runs a file of yours and ignores the other arguments (`encoder.wrapped`).
            With +shape, +color or both, its vectors also describe shapes and colors (`encoder.appended`).
        device: None: the GPU if there is one.
        backend: the library that runs the network: "torch", whose vectors equal timm's to 1e-5; "openvino",
            "openvino-bf16", "onnx", "compile", ...; or "auto", whose vectors have a cosine of 0.9999 or more to
            torch's: on the CPU OpenVINO where it is installed, in bf16 where the processor computes in it, else ONNX
            Runtime with network.onnx; torch on a GPU, and for a network that would be exported for a few images.
            None: the environment variable NNCLR_BACKEND, or "auto".
        precision: "fp32" or "bf16", unless the backend's name contains it; None: fp32, or any under "auto".
        images: number of images to expect, for "auto"; None: unknown.
        reading: the page and the channels to read of each file; None: as in the source, or as in training.

    Raises:
        UnknownModel, ModelFilesMissing: the source or its files do not exist.
        TamperedModel, WeightsMismatch: the files differ from what was recorded, or do not fit the architecture.
        InvalidRequest: the source is invalid, the device does not exist, or the backend cannot run the network.
        MissingDependency: the backend's package is not installed.
    """
    backend = backend or default_backend()
    plain, parts = split_appended(str(source))
    if parts:
        options = {"device": device, "backend": backend, "precision": precision, "images": images, "reading": reading}
        encoder = load_encoder(plain, **options)
        append_parts(encoder, Appended(parts))
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
    options: dict[str, Any] = {"name": reading.within(plain), "device": device}
    opener = partial(open_backend, backend, precision=precision, images=images)
    parse_backend(backend, precision)
    found = resolve(plain)
    if found.folder is None:
        return _load_from_timm(found.architecture, found.seed, options | {"backend": opener}, reading)
    config = found.config if found.seed is None else replace(found.config, nnclr={})  # it describes trained weights
    preprocessing = Preprocessing.of_model(config)
    reading = given or ImageReading.parse(text, preprocessing.reading)
    options["name"] = reading.within(plain)
    preprocessing = replace(preprocessing, reading=reading)
    options["config"] = config
    exportable = found.seed is None and _runs_on_cpu(device)
    if exportable and (ready := _ready(found, backend, precision)) is not None:
        exported, opened = ready
        build = partial(_rebuild, found, config, exported.fingerprint)
        deferred = DeferredBackbone(build, exported.embed_dim, exported.heads, exported.weight_bytes)
        options |= {"device": "cpu", "fingerprint": exported.fingerprint}
        return Encoder(deferred, preprocessing, backend=opened, **options)
    encoder = Encoder(_build(found, config), preprocessing, backend=opener, **options)
    runtime = encoder.backend.name.partition("-")[0]
    if exportable and runtime in RUNTIMES:
        save_exported(encoder, runtime, found.folder, found.weights)
    return encoder


def _runs_on_cpu(device: str | None) -> bool:
    return device == "cpu" or (device is None and sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)))


def _ready(found: Resolved, backend: str, precision: str | None) -> tuple[ExportedNetwork, Backend] | None:
    """Return the exported network of a model folder to use, and the backend that runs it; None if torch has to."""
    assert found.folder is not None
    kind, wanted = parse_backend(backend, precision)
    if not find_spec("torch"):  # any backend that runs is better than none
        kind, wanted = AUTO, None
    names = candidates("cpu", wanted, RUNTIMES) if kind == AUTO else [full_name(kind, wanted or "fp32")]
    for name in names:
        runtime, used = parse_backend(name)
        exported = find_exported(runtime, found.folder, found.weights) if runtime in RUNTIMES else None
        if exported is None or (kind == AUTO and used == "bf16" and exported.cosine < MIN_COSINE):
            continue
        try:
            return exported, exported.open(used or "fp32")
        except (NNCLRHubError, OSError):  # such as a runtime that is not installed any more; torch does without
            continue
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
    """Build the network of an encoder that was loaded before.

    Raises:
        TamperedModel: the folder has changed since.
        MissingDependency: torch is not installed.
    """
    backbone = _build(found, config)
    if fingerprint_of(backbone, Preprocessing.from_pretrained_cfg(config.pretrained_cfg), config) != fingerprint:
        raise TamperedModel(f"The weights in {found.folder} have changed since the encoder was loaded; load it again.")
    return backbone


def _build(found: Resolved, config: ModelConfig) -> nn.Module:
    """Build the network of a model folder in torch, with its weights or with random ones.

    Raises:
        MissingDependency: torch is not installed.
    """
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


def _load_from_timm(architecture: str, seed: int | None, options: dict[str, Any], reading: ImageReading) -> Encoder:
    """Load timm's own weights, or random ones from a seed, without advancing the global generator."""
    require_torch(architecture)
    import torch

    from nnclr_hub.encoder.backbones import create_backbone

    if seed is None:
        backbone = create_backbone(architecture, pretrained=True)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = create_backbone(architecture)
    published = Preprocessing.from_pretrained_cfg(backbone.pretrained_cfg)  # type: ignore[arg-type]
    return Encoder(backbone, replace(published, reading=reading), **options)
