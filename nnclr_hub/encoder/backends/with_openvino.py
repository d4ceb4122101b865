"""OpenVINO on the CPU: the traced network as one graph, whose weights share torch's memory until they are packed.

The graph is built with OpenVINO's front end directly, which takes a tenth of the time of `openvino.convert_model`.
OpenVINO is imported without openvino_telemetry, which would report every import to Google Analytics and write a user id
into the home folder.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.backends.base import cpu_threads, full_name
from nnclr_hub.encoder.warning_filters import ignore_warnings
from nnclr_hub.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:  # a saved graph runs without torch
    from torch import device as Device

    from nnclr_hub.encoder.backends.network import Network

GRAPH = "network.xml"  # its weights are in network.bin


class OpenVINOBackend:
    """OpenVINO on the CPU; all batch sizes run fast, because its dynamic graph is as fast as one of fixed size.

    Args:
        source: the network to trace, or a folder that `save` wrote.
        precision: "fp32" or "bf16".

    Raises:
        MissingDependency: OpenVINO is not installed.
        InvalidRequest: the processor lacks bfloat16, or the network is not supported.
    """

    buckets: tuple[int, ...] | None = None

    def __init__(self, source: Network | Path, precision: str) -> None:
        core = _core(_openvino())
        self.name = full_name("openvino", precision)
        self.precision = precision
        if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise InvalidRequest("This processor does not support bfloat16; use backend 'openvino'.")
        settings = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": cpu_threads(),
        }
        try:
            self._graph = core.read_model(source / GRAPH) if isinstance(source, Path) else _trace(source)
            self._request = core.compile_model(self._graph, "CPU", settings).create_infer_request()
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InvalidRequest(f"OpenVINO cannot run this network ({reason}); use backend 'torch'.") from error
        self._source = source  # a traced graph's weights are torch's own memory
        self._lock = threading.Lock()
        size = (source / GRAPH).with_suffix(".bin").stat().st_size if isinstance(source, Path) else source.bytes
        self.memory: int | None = size // (2 if precision == "bf16" else 1)

    def run(self, crops: np.ndarray) -> np.ndarray:
        """Run the network; see `Backend.run`."""
        with self._lock:  # a batch uses all threads, so a second one at the same time would only slow it down
            return self._request.infer([np.ascontiguousarray(crops)])[0].copy()

    def save(self, folder: Path) -> None:
        """Write the graph with its weights in float32, so that another process can run it without torch."""
        import openvino

        openvino.save_model(self._graph, folder / GRAPH, compress_to_fp16=False)


def open_openvino(network: Network, device: Device, precision: str) -> OpenVINOBackend:
    """Open the backend for a network in torch.

    Raises:
        InvalidRequest, MissingDependency: see the class; or the device is not the CPU.
    """
    if device.type != "cpu":
        raise InvalidRequest(f"Backend 'openvino' runs on the CPU only, got {device}; use backend 'torch'.")
    return OpenVINOBackend(network, precision)


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
        raise MissingDependency("OpenVINO is not installed; pip install 'nnclr_hub[openvino]'.") from error
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


def _trace(network: Network) -> Any:
    """Return the OpenVINO model of the network: (?, S, S, 3) uint8 -> (?, D) float32."""
    import torch
    from openvino import PartialShape
    from openvino.frontend import FrontEndManager

    with _without_telemetry():
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with ignore_warnings(), torch.no_grad():
        traced = torch.jit.trace(network, network.example(), check_trace=False)
        decoder = TorchScriptPythonDecoder(traced, example_input=network.example())
        front_end = FrontEndManager().load_by_framework("pytorch")
        model = front_end.convert(front_end.load(decoder))
    model.reshape(PartialShape([-1, network.side, network.side, network.channels]))
    return model
