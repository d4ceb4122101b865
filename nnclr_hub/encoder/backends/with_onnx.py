"""ONNX: export of the network to a file, and ONNX Runtime on the CPU."""

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
from nnclr_hub.encoder.warning_filters import ignore_warnings
from nnclr_hub.errors import InvalidRequest, MissingDependency

INPUT, FEATURES, EMBEDDING = "pixels", "features", "embedding"
OPSET = 18


class _BothOutputs(nn.Module):
    """crops -> features, and the same normalized."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network(crops)
        return features, F.normalize(features)


def onnx_bytes(network: Network, about: Mapping[str, str] | None = None) -> bytes:
    """Export an ONNX model: "pixels" (batch, S, S, 3) uint8 -> "features" and "embedding", (batch, D) float32.

    The graph contains the normalization of the pixels; "embedding" has unit rows.

    Raises:
        MissingDependency: onnx or onnxscript is not installed.
        InvalidRequest: torch cannot export the network.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"The package {error.name}, which ONNX models need, is not installed; pip install 'nnclr_hub[onnx]'."
        ) from error
    try:
        with ignore_warnings(), _silent_loggers(), torch.no_grad():
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
        raise InvalidRequest(f"torch cannot export this network to ONNX: {reason}.") from error
    model = program.model_proto
    for key, value in (about or {}).items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


@contextmanager
def _silent_loggers() -> Iterator[None]:
    """Hide the exporter's log of every step."""
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def onnx_session(model: bytes) -> Any:
    """Open a session of ONNX Runtime for a model, on the CPU with as many threads as torch.

    Raises:
        MissingDependency: ONNX Runtime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            "ONNX Runtime, which runs ONNX models, is not installed; pip install 'nnclr_hub[onnx]'."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class ONNXBackend:
    """ONNX Runtime on the CPU; all batch sizes run fast.

    Raises:
        MissingDependency: onnx, onnxscript or onnxruntime is not installed.
        InvalidRequest: the device is not the CPU, or the network cannot be exported.
    """

    buckets: tuple[int, ...] | None = None

    def __init__(self, network: Network, device: torch.device, precision: str) -> None:
        if device.type != "cpu":
            raise InvalidRequest(f"Backend 'onnx' runs on the CPU only, got {device}; use backend 'torch'.")
        self.name = "onnx"
        self.precision = precision
        self._session = onnx_session(onnx_bytes(network))
        self.memory: int | None = network.bytes

    def run(self, crops: np.ndarray) -> np.ndarray:
        """Run the network; see `Backend.run`. Threads may share a session."""
        return self._session.run([FEATURES], {INPUT: np.ascontiguousarray(crops)})[0]
