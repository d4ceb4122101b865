"""Forward passes: the same network run by torch, OpenVINO or ONNX Runtime, behind one interface.

    backend = open_backend("openvino-bf16", Network(backbone, preprocessing), torch.device("cpu"))     # opening.py
    backend.run(crops)          # (N, S, S, 3) uint8 -> (N, D) float32, as the network gives them

    torch       the plain network of timm's: the reference
    compile     torch.compile of it
    openvino    OpenVINO on the CPU
    onnx        ONNX Runtime on the CPU
    auto        the fastest of them here whose vectors are those of the reference (`choice.py`)

A name with "-bf16" computes in bfloat16 where that is safe, and gives float32 all the same. Names are looked up
without torch.
"""

from nnclr_hub.encoder.backends.base import Backend, parse_backend

__all__ = ["Backend", "parse_backend"]
