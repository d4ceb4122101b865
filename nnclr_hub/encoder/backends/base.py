"""What every backend promises, and how backends are named."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from nnclr_hub.errors import InvalidRequest

KINDS = {
    "torch": ("fp32", "bf16"),
    "compile": ("fp32", "bf16"),
    "openvino": ("fp32", "bf16"),
    "onnx": ("fp32",),
}
AUTO = "auto"
BACKENDS = (AUTO, *(kind if precision == "fp32" else f"{kind}-bf16" for kind in KINDS for precision in KINDS[kind]))


class Backend(Protocol):
    """One way to run a network; safe to call from many threads.

    name: as it may be asked for again, such as "openvino-bf16".
    precision: "fp32" or "bf16", what it computes in.
    buckets: batch sizes that are cheap, ascending; None: any is. The backend itself fills a batch up to the
        next of them and drops the rows that it added, so a caller needs them only to know what to warm up.
    memory: bytes of weights that it holds beside the torch network's own; None: not known.
    """

    name: str
    precision: str
    buckets: tuple[int, ...] | None
    memory: int | None

    def run(self, crops: np.ndarray) -> np.ndarray:
        """(N, S, S, 3) uint8 pixels, N >= 1 -> (N, D) float32, not brought to length 1."""
        ...


def parse_backend(name: str, precision: str | None = None) -> tuple[str, str | None]:
    """The kind and the precision that a caller means; "auto" may come with no precision: any will do.

    Args:
        name: one of BACKENDS.
        precision: "fp32" or "bf16", beside or instead of what the name says.

    Raises:
        InvalidRequest: there is no such backend or precision, or they contradict one another.
    """
    if precision not in (None, "fp32", "bf16"):
        raise InvalidRequest(f"Precision {precision!r} is none of fp32, bf16.")
    if name not in BACKENDS:
        raise InvalidRequest(f"Backend {name!r} is none of {', '.join(BACKENDS)}.")
    if name == AUTO:
        return AUTO, precision
    kind, _, suffix = name.partition("-")
    if suffix and precision not in (None, suffix):
        raise InvalidRequest(f"Backend {name!r} cannot have precision {precision!r}: give one or the other.")
    wanted = suffix or precision or "fp32"
    if wanted not in KINDS[kind]:
        raise InvalidRequest(f"Backend {kind!r} computes in {' or '.join(KINDS[kind])}, not in {wanted}.")
    return kind, wanted


def full_name(kind: str, precision: str) -> str:
    """The name of a kind at a precision: "torch", "torch-bf16", ..."""
    return kind if precision == "fp32" else f"{kind}-{precision}"
