"""ONNX: export of the network to a file, and ONNX Runtime on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.backends.base import cpu_threads
from nnclr_hub.encoder.warning_filters import ignore_warnings
from nnclr_hub.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:  # a saved graph runs without torch
    from torch import device as Device

    from nnclr_hub.encoder.backends.network import Network

GRAPH = "network.onnx"
INPUT, FEATURES, EMBEDDING = "pixels", "features", "embedding"
OPSET = 18


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
    import torch

    from nnclr_hub.encoder.backends.network import WithUnitRows

    try:
        with ignore_warnings(), _silent_loggers(), torch.no_grad():
            program = torch.onnx.export(
                WithUnitRows(network).eval(),
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


def onnx_session(model: bytes | str) -> Any:
    """Open a session of ONNX Runtime for a model or its file, on the CPU with as many threads as torch.

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
    options.intra_op_num_threads = cpu_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class ONNXBackend:
    """ONNX Runtime on the CPU; all batch sizes run fast.

    Args:
        model: what `onnx_bytes` returned, or a folder that `save` wrote.

    Raises:
        MissingDependency: onnxruntime is not installed.
    """

    name = "onnx"
    precision = "fp32"
    buckets: tuple[int, ...] | None = None

    def __init__(self, model: bytes | Path) -> None:
        self._model = model
        self._session = onnx_session(model if isinstance(model, bytes) else str(model / GRAPH))
        self.memory: int | None = len(model) if isinstance(model, bytes) else (model / GRAPH).stat().st_size

    def run(self, crops: np.ndarray) -> np.ndarray:
        """Run the network; see `Backend.run`. Threads may share a session."""
        return self._session.run([FEATURES], {INPUT: np.ascontiguousarray(crops)})[0]

    def save(self, folder: Path) -> None:
        """Write the graph with its weights, so that another process can run it without torch and without an export."""
        if isinstance(self._model, bytes):
            (folder / GRAPH).write_bytes(self._model)


def open_onnx(network: Network, device: Device, precision: str) -> ONNXBackend:
    """Open the backend for a network in torch.

    Raises:
        MissingDependency: onnx, onnxscript or onnxruntime is not installed.
        InvalidRequest: the device is not the CPU, or the network cannot be exported.
    """
    if device.type != "cpu":
        raise InvalidRequest(f"Backend 'onnx' runs on the CPU only, got {device}; use backend 'torch'.")
    return ONNXBackend(onnx_bytes(network))
