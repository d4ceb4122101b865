"""Backends: torch, OpenVINO and ONNX Runtime run the same network behind one interface.

    backend = open_backend("openvino-bf16", Network(backbone, preprocessing), torch.device("cpu"))
    backend.run(crops)          # (N, S, S, 3) uint8 -> (N, D) float32, not normalized

    torch       timm's network in torch: the reference
    compile     torch.compile
    openvino    OpenVINO on the CPU
    onnx        ONNX Runtime on the CPU
    auto        one of them by a rule, which measures nothing

A name with "-bf16" computes in bfloat16 where that is safe, and returns float32. Names are checked, and exported
networks opened, without importing torch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nnclr_hub.encoder.backends.base import RUNTIMES, Backend, default_backend, full_name, parse_backend
from nnclr_hub.errors import InvalidRequest

if TYPE_CHECKING:
    from torch import device as Device

    from nnclr_hub.encoder.backends.with_torch import Network

__all__ = ["Backend", "default_backend", "open_backend", "open_graph", "parse_backend", "rule"]


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
        network: already on `device`.
        precision: "fp32" or "bf16", unless the name contains it; None: the backend's default.

    Raises:
        InvalidRequest: the backend does not exist, or does not support this network or device.
        MissingDependency: its package is not installed.
    """
    kind, wanted = parse_backend(name, precision)
    if kind in RUNTIMES and device.type != "cpu":
        raise InvalidRequest(f"Backend {kind!r} runs on the CPU only, got {device}; use backend 'torch'.")
    if kind == "onnx":
        from nnclr_hub.encoder.backends.with_onnx import ONNXBackend, onnx_bytes

        return ONNXBackend(onnx_bytes(network), network.bytes)
    if kind == "openvino":
        from nnclr_hub.encoder.backends.with_openvino import OpenVINOBackend

        return OpenVINOBackend(network, wanted or "fp32", network.bytes)
    from nnclr_hub.encoder.backends.with_torch import CompileBackend, TorchBackend

    return (CompileBackend if kind == "compile" else TorchBackend)(network, device, wanted or "fp32")


def open_graph(name: str, graph: Path, weight_bytes: int) -> Backend:
    """Open network.onnx of a model folder in ONNX Runtime or OpenVINO; for errors see `open_backend`."""
    kind, precision = parse_backend(name)
    if kind == "onnx":
        from nnclr_hub.encoder.backends.with_onnx import ONNXBackend

        return ONNXBackend(graph, weight_bytes)
    from nnclr_hub.encoder.backends.with_openvino import OpenVINOBackend

    return OpenVINOBackend(graph, precision or "fp32", weight_bytes)


def graph_backends(name: str, precision: str | None) -> list[str]:
    """Return the backends that may open network.onnx for the name of a backend, the best first; [] if torch has to."""
    kind, wanted = parse_backend(name, precision)
    if not find_spec("torch"):  # any backend that runs is better than none
        kind, wanted = "auto", None
    return rule(wanted) if kind == "auto" else [full_name(kind, wanted or "fp32")] * (kind in RUNTIMES)
