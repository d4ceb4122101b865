"""Backends: torch, OpenVINO and ONNX Runtime run the same network behind one interface.

    backend = open_backend("openvino-bf16", Network(backbone, preprocessing), torch.device("cpu"))
    backend.run(crops)          # (N, S, S, 3) uint8 -> (N, D) float32, not normalized

    torch       timm's network in torch: the reference
    compile     torch.compile
    openvino    OpenVINO on the CPU
    onnx        ONNX Runtime on the CPU
    auto        one of them by a rule, see `rule`

A name with "-bf16" computes in bfloat16 where that is safe, and returns float32. Names are checked without importing
torch.
"""

from nnclr_hub.encoder.backends.base import Backend, default_backend, parse_backend
from nnclr_hub.encoder.backends.rule import open_backend

__all__ = ["Backend", "default_backend", "open_backend", "parse_backend"]
