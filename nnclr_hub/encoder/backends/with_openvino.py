"""OpenVINO on the CPU: the traced network as one graph, whose weights share torch's memory until they are packed.

The graph is built with OpenVINO's front end directly, which takes a tenth of the time of `openvino.convert_model`.
OpenVINO is imported without openvino_telemetry, which would report every import to Google Analytics and write a user id
into the home folder.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.backends.base import cpu_threads, full_name
from nnclr_hub.errors import InvalidRequest, MissingDependency
from nnclr_hub.hub.layout import WEIGHTS

if TYPE_CHECKING:  # a saved graph runs without torch
    from nnclr_hub.encoder.backends.with_torch import Network


class OpenVINOBackend:
    """OpenVINO on the CPU; all batch sizes run fast, because its dynamic graph is as fast as one of fixed size.

    Args:
        source: the network to trace, or network.onnx of a model folder.
        precision: "fp32" or "bf16".
        weight_bytes: size of the weights in float32.

    Raises:
        MissingDependency: OpenVINO is not installed.
        InvalidRequest: the processor lacks bfloat16, or the network is not supported.
    """

    buckets: tuple[int, ...] | None = None

    def __init__(self, source: Network | Path, precision: str, weight_bytes: int) -> None:
        core = _core(_openvino())
        self.name = full_name("openvino", precision)
        self.precision = precision
        if precision == "bf16" and not computes_bf16():
            raise InvalidRequest("This processor does not support bfloat16; use backend 'openvino'.")
        settings = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": cpu_threads(),
        }
        try:
            graph = _read(core, source) if isinstance(source, Path) else _trace(source)
            compiled = core.compile_model(graph, "CPU", settings)
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InvalidRequest(f"OpenVINO cannot run this network ({reason}); use backend 'torch'.") from error
        self._request, self._features = compiled.create_infer_request(), compiled.outputs[-1]
        self._source = source  # a traced graph's weights are torch's own memory
        self._lock = threading.Lock()
        self.memory: int | None = weight_bytes // (2 if precision == "bf16" else 1)

    def run(self, crops: np.ndarray) -> np.ndarray:
        with self._lock:  # a batch uses all threads, so a second one at the same time would only slow it down
            return self._request.infer([np.ascontiguousarray(crops)])[self._features].copy()


def computes_bf16() -> bool:
    """Return whether OpenVINO computes in bfloat16 on this processor.

    Raises:
        MissingDependency: OpenVINO is not installed.
    """
    return "BF16" in _core(_openvino()).get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@cache
def _core(openvino: Any) -> Any:
    """Return the only core of the process, which is never freed.

    The CPU plugin installs a signal stack for the thread and restores the earlier one when it is freed. When two cores
    were freed in the order of their creation, the second restored the stack of the first, which no longer existed. The
    next signal crashed the process.
    """
    return openvino.Core()


def _openvino() -> Any:
    try:
        with _without_telemetry():
            import openvino
    except ImportError as error:
        raise MissingDependency("OpenVINO is not installed; pip install openvino.") from error
    return openvino


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Make openvino_telemetry look as if it were not installed, a case that OpenVINO supports."""
    absent = "openvino_telemetry" not in sys.modules
    if absent:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["openvino_telemetry"]


def _read(core: Any, file: Path) -> Any:
    if not (file.parent / WEIGHTS).is_symlink():
        return core.read_model(file)
    # as in the cache of the Hub: OpenVINO refuses weights outside of the folder
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name in (file.name, WEIGHTS):
            shutil.copyfile(file.parent / name, Path(folder) / name)
        return core.read_model(Path(folder) / file.name)


def _trace(network: Network) -> Any:
    """Return the OpenVINO model of the network: (?, S, S, 3) uint8 -> (?, D) float32."""
    import torch
    from openvino import PartialShape
    from openvino.frontend import FrontEndManager

    with _without_telemetry():
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        traced = torch.jit.trace(network, network.example(), check_trace=False)
        decoder = TorchScriptPythonDecoder(traced, example_input=network.example())
        front_end = FrontEndManager().load_by_framework("pytorch")
        model = front_end.convert(front_end.load(decoder))
    model.reshape(PartialShape([-1, network.side, network.side, network.channels]))
    return model
