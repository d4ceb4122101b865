"""Forward passes: the same network run by torch, OpenVINO or ONNX Runtime, behind one interface.

    backend = open_backend("openvino-bf16", Network(backbone, preprocessing), torch.device("cpu"))
    backend.run(crops)          # (N, S, S, 3) uint8 -> (N, D) float32, as the network gives them

    torch       the plain network of timm's: the reference
    compile     torch.compile of it
    openvino    OpenVINO on the CPU
    onnx        ONNX Runtime on the CPU
    auto        the fastest of them here whose vectors are those of the reference (`choice.py`)

A name with "-bf16" computes in bfloat16 where that is safe, and gives float32 all the same.
"""

from nnclr_hub.encoder.backends.base import Backend, parse_backend
from nnclr_hub.encoder.backends.network import Network
from nnclr_hub.encoder.backends.opening import open_backend

__all__ = ["Backend", "Network", "open_backend", "parse_backend"]
