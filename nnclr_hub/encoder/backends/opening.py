"""Open a backend by its name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nnclr_hub.encoder.backends.base import AUTO, Backend, parse_backend
from nnclr_hub.encoder.backends.choice import choose
from nnclr_hub.encoder.backends.network import Network
from nnclr_hub.encoder.backends.with_onnx import ONNXBackend
from nnclr_hub.encoder.backends.with_openvino import OpenVINOBackend
from nnclr_hub.encoder.backends.with_torch import CompileBackend, TorchBackend

OPENERS: dict[str, Callable[[Network, torch.device, str], Backend]] = {
    "torch": TorchBackend,
    "compile": CompileBackend,
    "openvino": OpenVINOBackend,
    "onnx": ONNXBackend,
}


def open_backend(
    name: str,
    network: Network,
    device: torch.device,
    *,
    precision: str | None = None,
    fingerprint: Callable[[], str] = lambda: "",
) -> Backend:
    """Open the backend of a name for a network.

    Args:
        name: one of `base.BACKENDS`.
        precision: "fp32" or "bf16", unless the name contains it; None: the backend's default.
        fingerprint: returns the encoder's fingerprint; called for "auto", which caches its choice under it.

    Raises:
        InvalidRequest: the backend does not exist, or does not support this network or device.
        MissingDependency: its package is not installed.
    """
    kind, wanted = parse_backend(name, precision)
    if kind != AUTO:
        return OPENERS[kind](network, device, wanted or "fp32")

    def opened(name: str) -> Backend:
        return open_backend(name, network, device)

    return choose(opened, network.side, device, wanted, fingerprint())
