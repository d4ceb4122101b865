"""Which backend runs a network: by name, or by the rule of "auto", which measures nothing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from nnclr_hub.encoder.backends.base import Backend, parse_backend

if TYPE_CHECKING:  # names are checked, and graphs opened, without torch
    from torch import device as Device

    from nnclr_hub.encoder.backends.network import Network


def rule(precision: str | None = None) -> list[str]:
    """Return the backends that "auto" uses for a model folder with network.onnx on a CPU, the best first.

    That is OpenVINO in bfloat16 where the processor computes in it (5.2 ms an image), else ONNX Runtime (10.8). Without
    network.onnx, and on a GPU, "auto" is torch (13.5). docs/results/forward.md has the times.

    Args:
        precision: "fp32" or "bf16"; None: both.
    """
    names = []
    if precision in (None, "bf16") and find_spec("openvino"):
        from nnclr_hub.encoder.backends.with_openvino import computes_bf16

        names += ["openvino-bf16"] * computes_bf16()
    if precision in (None, "fp32") and find_spec("onnxruntime"):
        names += ["onnx"]
    return names


def open_backend(name: str, network: Network, device: Device, *, precision: str | None = None) -> Backend:
    """Open the backend of a name for a network in torch; "auto" is torch.

    Args:
        name: one of BACKENDS.
        network: already on `device`.
        precision: "fp32" or "bf16", unless the name contains it; None: the backend's default.

    Raises:
        InvalidRequest: the backend does not exist, or does not support this network or device.
        MissingDependency: its package is not installed.
    """
    kind, wanted = parse_backend(name, precision)
    opener: Any
    if kind == "openvino":
        from nnclr_hub.encoder.backends.with_openvino import open_openvino as opener
    elif kind == "onnx":
        from nnclr_hub.encoder.backends.with_onnx import open_onnx as opener
    elif kind == "compile":
        from nnclr_hub.encoder.backends.with_torch import CompileBackend as opener
    else:
        from nnclr_hub.encoder.backends.with_torch import TorchBackend as opener
    return opener(network, device, wanted or "fp32")
