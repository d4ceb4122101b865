"""ONNX: the network as a file for other runtimes, and ONNX Runtime on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnclr_hub.encoder.backends.network import Network
from nnclr_hub.encoder.quiet import tracer_kept_quiet
from nnclr_hub.errors import InvalidRequest, MissingDependency

INPUT, FEATURES, EMBEDDING = "pixels", "features", "embedding"
OPSET = 18


class _BothOutputs(nn.Module):
    """crops -> features as the network gives them, and the same at length 1."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network(crops)
        return features, F.normalize(features)


def onnx_bytes(network: Network, about: Mapping[str, str] | None = None) -> bytes:
    """An ONNX model: "pixels" (batch, S, S, 3) uint8 -> "features" and "embedding", (batch, D) float32.

    The mean and deviation of the colors are in the graph; "embedding" has rows of length 1.

    Args:
        network: on the CPU.
        about: kept as the model's metadata.

    Raises:
        MissingDependency: onnx or onnxscript is not installed.
        InvalidRequest: torch cannot export the network.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"An ONNX model needs the package {error.name}, which is not installed: pip install 'nnclr_hub[onnx]'."
        ) from error
    try:
        with tracer_kept_quiet(), _loggers_kept_quiet(), torch.no_grad():
            program = torch.onnx.export(
                _BothOutputs(network).eval(),
                (network.example(),),
                input_names=[INPUT],
                output_names=[FEATURES, EMBEDDING],
                opset_version=OPSET,
                dynamic_shapes={"crops": {0: torch.export.Dim("batch")}},
                dynamo=True,
                verbose=False,
            )
            assert program is not None
    except torch.onnx.OnnxExporterError as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidRequest(f"torch cannot export this network to ONNX ({reason}).") from error
    model = program.model_proto
    for key, value in (about or {}).items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


@contextmanager
def _loggers_kept_quiet() -> Iterator[None]:
    """The exporter tells of every step it takes."""
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def onnx_session(model: bytes) -> Any:
    """ONNX Runtime's session of a model, on the CPU with as many threads as torch uses.

    Raises:
        MissingDependency: ONNX Runtime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            "ONNX Runtime is not installed, which runs ONNX models: pip install 'nnclr_hub[onnx]'."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class ONNXBackend:
    """ONNX Runtime on the CPU; any batch size is cheap.

    Args:
        network: on the CPU.
        device: must be the CPU.
        precision: "fp32".

    Raises:
        MissingDependency: onnx, onnxscript or onnxruntime is not installed.
        InvalidRequest: another device, or a network that cannot be exported.
    """

    buckets: tuple[int, ...] | None = None

    def __init__(self, network: Network, device: torch.device, precision: str) -> None:
        if device.type != "cpu":
            raise InvalidRequest(f"Backend 'onnx' runs on the CPU, not on {device}: take backend 'torch' there.")
        self.name = "onnx"
        self.precision = precision
        self._session = onnx_session(onnx_bytes(network))
        self.memory: int | None = network.bytes

    def run(self, crops: np.ndarray) -> np.ndarray:
        """See `Backend.run`; sessions may be shared by threads."""
        return self._session.run([FEATURES], {INPUT: np.ascontiguousarray(crops)})[0]
