"""OpenVINO on the CPU: the traced network as one graph, weights shared with torch until they are packed.

The graph is built through OpenVINO's front end itself, in a tenth of the time that `openvino.convert_model`
takes. And OpenVINO is imported without its companion openvino_telemetry, with which it would tell its makers of
every import, by way of an advertiser, and write a number for this user into the home folder.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from nnclr_hub.encoder.backends.base import full_name
from nnclr_hub.encoder.backends.network import Network
from nnclr_hub.encoder.quiet import tracer_kept_quiet
from nnclr_hub.errors import InvalidRequest, MissingDependency


class OpenVINOBackend:
    """Any batch size is cheap: its graph has a batch of any length, at the speed of a fixed one.

    Args:
        network: on the CPU.
        device: must be the CPU.
        precision: "fp32" or "bf16".

    Raises:
        MissingDependency: OpenVINO is not installed.
        InvalidRequest: another device, a processor without bfloat16, or a network that it cannot run.
    """

    buckets: tuple[int, ...] | None = None

    def __init__(self, network: Network, device: torch.device, precision: str) -> None:
        if device.type != "cpu":
            raise InvalidRequest(f"Backend 'openvino' runs on the CPU, not on {device}: take backend 'torch' there.")
        core = _core(_openvino())
        self.name = full_name("openvino", precision)
        self.precision = precision
        if precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise InvalidRequest("This processor has no bfloat16: take backend 'openvino'.")
        settings = {
            "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        try:
            self._request = core.compile_model(_graph(network), "CPU", settings).create_infer_request()
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise InvalidRequest(f"OpenVINO cannot run this network ({reason}): take backend 'torch'.") from error
        self._network = network  # the graph's weights are torch's own memory
        self._one_at_a_time = threading.Lock()
        self.memory: int | None = network.bytes // (2 if precision == "bf16" else 1)

    def run(self, crops: np.ndarray) -> np.ndarray:
        """See `Backend.run`."""
        with self._one_at_a_time:  # it uses all threads for one batch; a second would only be in the way
            return self._request.infer([np.ascontiguousarray(crops)])[0].copy()


@cache
def _core(openvino: Any) -> Any:
    """One for the process and for good.

    Its CPU plugin gives the thread a stack for signals, and takes it down with itself: where two went in the order
    they came, the second put the first one's back, which was no more, and the next signal crashed the process.
    """
    return openvino.Core()


def _openvino() -> Any:
    try:
        with _without_telemetry():
            import openvino
            import openvino.frontend.pytorch.ts_decoder
    except ImportError as error:
        raise MissingDependency(
            "Backend 'openvino' needs OpenVINO, which is not installed: pip install 'nnclr_hub[openvino]'."
        ) from error
    return openvino


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Makes the companion look as if it were not installed, for which OpenVINO is prepared."""
    absent = "openvino_telemetry" not in sys.modules
    if absent:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if absent:
            del sys.modules["openvino_telemetry"]


def _graph(network: Network) -> Any:
    """OpenVINO's model of the network: (?, S, S, 3) uint8 -> (?, D) float32."""
    from openvino import PartialShape
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with tracer_kept_quiet(), torch.no_grad():
        traced = torch.jit.trace(network, network.example(), check_trace=False)
        decoder = TorchScriptPythonDecoder(traced, example_input=network.example())
        front_end = FrontEndManager().load_by_framework("pytorch")
        model = front_end.convert(front_end.load(decoder))
    model.reshape(PartialShape([-1, network.side, network.side, 3]))
    return model
