"""Open a backend by its name; "auto" follows a rule, without measuring.

On the CPU, that is OpenVINO where it is installed, in bfloat16 where the processor computes in it; else ONNX Runtime
where the model folder has network.onnx; else torch. On a GPU, it is torch. docs/results/forward.md has the times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from nnclr_hub.encoder.backends.base import AUTO, Backend, full_name, parse_backend
from nnclr_hub.encoder.backends.probe_batch import probe_images
from nnclr_hub.errors import NNCLRHubError

if TYPE_CHECKING:  # an exported network is opened without torch
    from torch import device as Device

    from nnclr_hub.encoder.backends.network import Network

log = logging.getLogger(__name__)

MIN_COSINE = 0.9999  # between the vectors of what "auto" opens and torch's, for the worst image
COMPARED = 4  # images
FEW = 256  # images, which torch embeds faster than a network is exported
MANY = FEW + 1  # images to expect of a program that cannot count them


def _opener(kind: str) -> Callable[[Network, Device, str], Backend]:
    if kind == "openvino":
        from nnclr_hub.encoder.backends.with_openvino import open_openvino

        return open_openvino
    if kind == "onnx":
        from nnclr_hub.encoder.backends.with_onnx import open_onnx

        return open_onnx
    from nnclr_hub.encoder.backends.with_torch import CompileBackend, TorchBackend

    return {"torch": TorchBackend, "compile": CompileBackend}[kind]


def open_backend(
    name: str, network: Network, device: Device, *, precision: str | None = None, images: int | None = None
) -> Backend:
    """Open the backend of a name for a network in torch.

    Args:
        name: one of `base.BACKENDS`.
        network: already on `device`.
        precision: "fp32" or "bf16", unless the name contains it; None: the backend's default.
        images: number of images to expect; "auto" exports the network only for more than FEW. None: unknown.

    Raises:
        InvalidRequest: the backend does not exist, or does not support this network or device.
        MissingDependency: its package is not installed.
    """
    kind, wanted = parse_backend(name, precision)
    if kind != AUTO:
        return _opener(kind)(network, device, wanted or "fp32")
    *exports, in_torch = candidates(device.type, wanted)
    reference = open_backend(in_torch, network, device)
    crops = probe_images(network.side, COMPARED, network.channels)
    for one in exports if images is not None and images > FEW else ():
        try:
            backend = open_backend(one, network, device)
            if worst_cosine(backend.run(crops), reference.run(crops)) >= MIN_COSINE:
                return backend
            log.info("%s gives other vectors than torch", one)
        except NNCLRHubError as error:
            log.info("%s cannot run this network: %s", one, error)
    return reference


def candidates(device: str, precision: str | None, exported: Container[str] = ()) -> list[str]:
    """Return the backends that "auto" tries, the best first and torch last.

    Args:
        device: its type: "cpu" or "cuda".
        precision: "fp32" or "bf16"; None: both.
        exported: kinds of which a network may be ready. ONNX Runtime is slow to export, so it is used for these only.
    """
    names = []
    if device == "cpu" and find_spec("openvino"):
        from nnclr_hub.encoder.backends.with_openvino import computes_bf16

        names += ["openvino-bf16", "openvino"] if computes_bf16() else ["openvino"]
    if device == "cpu" and "onnx" in exported and find_spec("onnxruntime"):
        names += ["onnx"]
    fitting = [name for name in names if precision in (None, parse_backend(name)[1])]
    return [*fitting, full_name("torch", precision or "fp32")]


def worst_cosine(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the lowest cosine between rows of two (N, D) arrays; -1 if a value is not finite."""
    lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
    cosines = (got * wanted).sum(axis=1) / np.maximum(lengths, 1e-12)
    return float(np.nan_to_num(cosines, nan=-1.0).min())
