"""ONNX: export of the network to a file, and ONNX Runtime on the CPU."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.backends.base import cpu_threads
from nnclr_hub.errors import InvalidRequest, MissingDependency
from nnclr_hub.hub.layout import tensor_ranges

if TYPE_CHECKING:  # a saved graph runs without torch
    from nnclr_hub.encoder.backends.with_torch import Network

FLOAT = 1  # onnx.TensorProto.FLOAT
PREFIX = "network.backbone."  # before the names of weights in the graph
INPUT, FEATURES, EMBEDDING = "pixels", "features", "embedding"
OPSET = 18


def onnx_bytes(network: Network, about: Mapping[str, str] | None = None) -> bytes:
    """Export an ONNX model: "pixels" (batch, S, S, 3) uint8 -> "embedding" and "features", (batch, D) float32.

    The graph contains the normalization of the pixels; "embedding" has unit rows, and is the first output.

    Raises:
        MissingDependency: onnx or onnxscript is not installed.
        InvalidRequest: torch cannot export the network.
    """
    model = _exported(network)
    for key, value in (about or {}).items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


def onnx_graph(network: Network, weights: Path) -> bytes:
    """Export the model of `onnx_bytes` whose weights are byte ranges of a safetensors file in the same folder.

    Args:
        network: network whose weights the file has.
        weights: the file, in fp32 or fp16.

    Raises:
        MissingDependency, InvalidRequest: see `onnx_bytes`.
    """
    import onnx

    model = _exported(network)
    stored, casts = tensor_ranges(weights), []
    for one in filter(_is_weight, model.graph.initializer):
        key = one.name.removeprefix(PREFIX)
        dtype, offset, length = stored[key]
        one.ClearField("raw_data")
        one.data_location = onnx.TensorProto.EXTERNAL
        for field, value in (("location", weights.name), ("offset", offset), ("length", length)):
            one.external_data.add(key=field, value=str(value))
        if dtype == "F16":  # ONNX Runtime casts once, when it opens the model
            casts.append(onnx.helper.make_node("Cast", [key], [one.name], to=FLOAT))
            one.name, one.data_type = key, onnx.TensorProto.FLOAT16
    nodes = [*casts, *model.graph.node]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    return model.SerializeToString()


def _exported(network: Network) -> Any:
    """Return the ModelProto, optimized, with the float weights of the backbone as they are in its state dict.

    The first output has unit rows.
    """
    try:
        import onnx
        import onnxscript.optimizer
    except ImportError as error:
        raise MissingDependency(
            f"The package {error.name}, which ONNX models need, is not installed; pip install 'nnclr_hub[torch]'."
        ) from error
    import torch

    from nnclr_hub.encoder.backends.with_torch import WithUnitRows

    try:
        with warnings.catch_warnings(action="ignore"), _silent_loggers(), torch.no_grad():
            program = torch.onnx.export(
                WithUnitRows(network).eval(),
                (network.example(),),
                input_names=[INPUT],
                output_names=[FEATURES, EMBEDDING],
                opset_version=OPSET,
                dynamic_shapes={"crops": {0: torch.export.Dim("batch")}},
                dynamo=True,
                optimize=False,
                verbose=False,
            )
            assert program is not None
            model = program.model_proto
            # the optimizer would fold weights into others; as inputs, their values are unknown to it
            weights = [one for one in model.graph.initializer if _is_weight(one)]
            rest = [one for one in model.graph.initializer if not _is_weight(one)]
            model.graph.ClearField("initializer")
            model.graph.initializer.extend(rest)
            model.graph.input.extend(
                onnx.helper.make_tensor_value_info(one.name, one.data_type, list(one.dims)) for one in weights
            )
            model = onnxscript.optimizer.optimize(model)
    except torch.onnx.OnnxExporterError as error:
        reason = " ".join(str(error).split())[:200]
        raise InvalidRequest(f"torch cannot export this network to ONNX: {reason}.") from error
    inputs = [one for one in model.graph.input if one.name == INPUT]
    used = {name for node in model.graph.node for name in node.input}
    for field in ("input", "value_info", "metadata_props"):
        model.graph.ClearField(field)
    model.graph.input.extend(inputs)
    outputs = sorted(model.graph.output, key=lambda one: one.name != EMBEDDING)
    model.graph.ClearField("output")
    model.graph.output.extend(outputs)
    model.graph.initializer.extend(one for one in weights if one.name in used)
    for node in model.graph.node:  # paths of source files, which would be different on each machine
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    return model


def _is_weight(initializer: Any) -> bool:
    return initializer.name.startswith(PREFIX) and initializer.data_type == FLOAT


@contextmanager
def _silent_loggers() -> Iterator[None]:
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def onnx_session(model: bytes | Path) -> Any:
    """Open a session of ONNX Runtime for a model or its file, on the CPU with as many threads as torch.

    Raises:
        MissingDependency: ONNX Runtime is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read at the import; it would report to Microsoft otherwise
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(
            "ONNX Runtime, which runs ONNX models, is not installed; pip install onnxruntime."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cpu_threads()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class ONNXBackend:
    """ONNX Runtime on the CPU; all batch sizes run fast.

    Args:
        model: what `onnx_bytes` returned, or a file of it or of `onnx_graph`.
        memory: size of the weights in float32; None: unknown.

    Raises:
        MissingDependency: onnxruntime is not installed.
        InvalidRequest: ONNX Runtime cannot run the model.
    """

    name = "onnx"
    precision = "fp32"
    buckets: tuple[int, ...] | None = None

    def __init__(self, model: bytes | Path, memory: int | None = None) -> None:
        self.memory = memory
        try:
            self._session = onnx_session(model)
        except MissingDependency:
            raise
        except Exception as error:  # the errors of ONNX Runtime have no class in common
            reason = " ".join(str(error).split())[:200]
            raise InvalidRequest(f"ONNX Runtime cannot run this network ({reason}); use backend 'torch'.") from error

    def run(self, crops: np.ndarray) -> np.ndarray:
        return self._session.run([FEATURES], {INPUT: np.ascontiguousarray(crops)})[0]  # threads may share it
