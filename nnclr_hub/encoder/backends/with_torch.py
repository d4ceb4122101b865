"""torch: the network that every backend runs, its plain forward pass, which is the reference, and torch.compile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch._dynamo.exc
import torch.nn.functional as F
from torch import Tensor, nn

from nnclr_hub.encoder.backends.base import full_name
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest

os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))  # see `store.index.state`
GRAPHS = (1, 4, 16, 64)  # batch sizes with a CUDA graph each


class Network(nn.Module):
    """(N, S, S, C) uint8 crops -> (N, D) float features, not normalized.

    Args:
        backbone: (N, 3, S, S) float -> (N, D), in evaluation mode; shared, not copied.
        preprocessing: its input size, mean and std are used.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.backbone = backbone
        self.side, self.channels = preprocessing.input_size, preprocessing.in_chans
        # not part of the state dict, because they are not weights
        for name in ("mean", "std"):
            colors = torch.tensor(getattr(preprocessing, name)).mul_(255).view(1, -1, 1, 1)
            self.register_buffer(name, colors, persistent=False)
        self.eval()

    def forward(self, crops: Tensor) -> Tensor:
        """Compute features of crops on the network's device; the layout in memory stays channels last."""
        return self.backbone((crops.permute(0, 3, 1, 2).float() - self.mean) / self.std)

    def example(self) -> Tensor:
        """Return (2, S, S, C) uint8 for tracing; not one image, because tracers treat batch size 1 specially."""
        return torch.zeros(2, self.side, self.side, self.channels, dtype=torch.uint8)

    @property
    def bytes(self) -> int:
        """Size of the weights in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.backbone.state_dict().values())


class WithUnitRows(nn.Module):
    """(N, S, S, 3) uint8 crops -> (N, D) features, and the same with rows of length 1."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network(crops)
        return features, F.normalize(features)


class TorchBackend:
    """The plain network; "bf16" runs under autocast, which keeps norms and sums in float32."""

    buckets: tuple[int, ...] | None = None
    memory: int | None = 0

    def __init__(self, network: Network, device: torch.device, precision: str) -> None:
        self.name = full_name("torch", precision)
        self.precision = precision
        self._device = device
        self._network = network

    def run(self, crops: np.ndarray) -> np.ndarray:
        return forward(self._network, torch.as_tensor(crops), self._device, self.precision)


class CompileBackend:
    """torch.compile: one program for all batch sizes on the CPU, one CUDA graph per size in GRAPHS on a GPU.

    On a GPU, other batches are split and padded to these sizes. The first call of each program takes about a minute.
    """

    buckets: tuple[int, ...] | None = None
    memory: int | None = None

    def __init__(self, network: Network, device: torch.device, precision: str) -> None:
        self.name = full_name("compile", precision)
        self.precision = precision
        self._device = device
        self._lock = threading.Lock()  # two threads must not compile the same program
        self._thread = None
        if device.type == "cuda":
            self.buckets = GRAPHS
            self._compiled: Any = torch.compile(network, mode="reduce-overhead", dynamic=False)
            self._thread = ThreadPoolExecutor(1, "cuda-graphs")  # a graph belongs to the thread that made it
        else:
            self._compiled = torch.compile(network)

    def run(self, crops: np.ndarray) -> np.ndarray:
        try:
            if self._thread is not None:
                return self._thread.submit(self._run_graphs, crops).result()
            pixels = torch.as_tensor(crops)
            if len(crops) == 1:  # torch.compile would make a separate program for size 1
                pixels = pixels.expand(2, -1, -1, -1).contiguous()
            torch._dynamo.maybe_mark_dynamic(pixels, 0)
            with self._lock:
                return forward(self._compiled, pixels, self._device, self.precision)[: len(crops)]
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().partition("\n")[0][:200]
            raise InvalidRequest(
                f"torch.compile cannot run this network ({reason}); install a C++ compiler, or use another backend."
            ) from error

    def _run_graphs(self, crops: np.ndarray) -> np.ndarray:
        """Run pieces of the sizes that have a graph; pad the last piece with copies of its first image."""
        features = []
        for start in range(0, len(crops), GRAPHS[-1]):
            piece = crops[start : start + GRAPHS[-1]]
            size = next(size for size in GRAPHS if size >= len(piece))
            filled = np.concatenate([piece, np.repeat(piece[:1], size - len(piece), axis=0)])
            features.append(forward(self._compiled, torch.as_tensor(filled), self._device, self.precision))
            features[-1] = features[-1][: len(piece)]
        return np.concatenate(features)


@torch.inference_mode()
def forward(compute: Any, x: Tensor, device: torch.device, precision: str) -> np.ndarray:
    """Run compute(x) on the device, under autocast for "bf16"; return float32.

    Raises:
        MemoryError: the device's memory is too small.
    """
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()  # the GPU copies pinned memory while the CPU launches the network
    with memory_errors():
        x = x.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            return compute(x).float().cpu().numpy()


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise MemoryError in place of torch's error for a device without enough memory, so that callers need no torch."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from None  # its traceback would keep the tensors of the batch in memory
