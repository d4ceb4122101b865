"""The interface of a backend, and the names of backends."""

from __future__ import annotations

import os
import sys
from typing import Protocol

import numpy as np

from nnclr_hub.errors import InvalidRequest

KINDS = {
    "torch": ("fp32", "bf16"),
    "compile": ("fp32", "bf16"),
    "openvino": ("fp32", "bf16"),
    "onnx": ("fp32",),
}
RUNTIMES = ("openvino", "onnx")  # they open the network.onnx of a model folder, and need no torch
AUTO = "auto"
BACKENDS = (AUTO, *(kind if precision == "fp32" else f"{kind}-bf16" for kind in KINDS for precision in KINDS[kind]))


class Backend(Protocol):
    """A library that runs a network; safe to call from many threads.

    name: one of BACKENDS, such as "openvino-bf16".
    precision: "fp32" or "bf16".
    buckets: batch sizes that run fast, ascending; None: all do. The backend pads a batch to the next bucket and drops
        the added rows, so callers need buckets only for warm-up.
    memory: bytes of weights in addition to the torch network; None: unknown.
    """

    name: str
    precision: str
    buckets: tuple[int, ...] | None
    memory: int | None

    def run(self, crops: np.ndarray) -> np.ndarray:
        """Run (N, S, S, 3) uint8 pixels, N >= 1, through the network: (N, D) float32, not normalized.

        Raises:
            MemoryError: the batch does not fit into the memory of the device.
        """
        ...


def default_backend() -> str:
    """Return the value of NNCLR_BACKEND, or "auto"."""
    return os.environ.get("NNCLR_BACKEND") or AUTO


def parse_backend(name: str, precision: str | None = None) -> tuple[str, str | None]:
    """Split a backend's name into kind and precision; the precision of "auto" may be None, for any.

    Args:
        precision: "fp32" or "bf16", in addition to the name or instead of its suffix.

    Raises:
        InvalidRequest: the backend or the precision does not exist, or they contradict each other.
    """
    if precision not in (None, "fp32", "bf16"):
        raise InvalidRequest(f"precision must be fp32 or bf16, got {precision!r}.")
    if name not in BACKENDS:
        raise InvalidRequest(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}.")
    if name == AUTO:
        return AUTO, precision
    kind, _, suffix = name.partition("-")
    if suffix and precision not in (None, suffix):
        raise InvalidRequest(f"Backend {name!r} contradicts precision {precision!r}; leave one of them out.")
    wanted = suffix or precision or "fp32"
    if wanted not in KINDS[kind]:
        raise InvalidRequest(f"Backend {kind!r} supports {' and '.join(KINDS[kind])} only, got {wanted}.")
    return kind, wanted


def cpu_threads() -> int:
    """Return the number of threads for the CPU: torch's if it is imported; 0: as the library chooses."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else int(os.environ.get("OMP_NUM_THREADS") or 0)


def full_name(kind: str, precision: str) -> str:
    """Return the name of a kind with a precision: "torch", "torch-bf16", ..."""
    return kind if precision == "fp32" else f"{kind}-{precision}"
