"""The reference, torch's own forward pass, and torch.compile of it."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import torch
import torch._dynamo.exc
from torch import Tensor

from nnclr_hub.encoder.backends.base import full_name
from nnclr_hub.encoder.backends.network import Network
from nnclr_hub.errors import InvalidRequest

log = logging.getLogger(__name__)


class TorchBackend:
    """The network as it stands; "bf16" runs under autocast, so that norms and sums stay in float32.

    Args:
        network: on `device` already.
        device: where it is.
        precision: "fp32" or "bf16".
    """

    buckets: tuple[int, ...] | None = None
    memory: int | None = 0

    def __init__(self, network: Network, device: torch.device, precision: str) -> None:
        self.name = full_name("torch", precision)
        self.precision = precision
        self._device = device
        self._network = network

    def run(self, crops: np.ndarray) -> np.ndarray:
        """See `Backend.run`."""
        return forward(self._network, torch.as_tensor(crops), self._device, self.precision)


class CompileBackend:
    """torch.compile, once for every batch size above one; the first call takes a minute or so.

    Args:
        network: on `device` already.
        device: where it is.
        precision: "fp32" or "bf16".
    """

    buckets: tuple[int, ...] | None = None
    memory: int | None = None

    def __init__(self, network: Network, device: torch.device, precision: str) -> None:
        self.name = full_name("compile", precision)
        self.precision = precision
        self._device = device
        self._compiled: Any = torch.compile(network)
        self._one_at_a_time = threading.Lock()  # two threads must not compile the same thing

    def run(self, crops: np.ndarray) -> np.ndarray:
        """See `Backend.run`."""
        pixels = torch.as_tensor(crops)
        if len(crops) == 1:  # torch.compile would make a program of its own for it
            pixels = pixels.expand(2, -1, -1, -1).contiguous()
        torch._dynamo.maybe_mark_dynamic(pixels, 0)
        try:
            with self._one_at_a_time:
                return forward(self._compiled, pixels, self._device, self.precision)[: len(crops)]
        except torch._dynamo.exc.TorchDynamoException as error:
            raise InvalidRequest(
                f"torch.compile cannot run this network here ({_first_line(error)}): it needs a C++ compiler; "
                "take another backend."
            ) from error


@torch.inference_mode()
def forward(compute: Any, x: Tensor, device: torch.device, precision: str) -> np.ndarray:
    """compute(x) on the device as float32; under autocast for "bf16"."""
    x = x.to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        return compute(x).float().cpu().numpy()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
