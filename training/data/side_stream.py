"""A CUDA stream for the images and views of a step, so a GPU makes them while it still computes the step before.

The CPU is ahead of the GPU, because a step never waits for it. On a single stream, the copy of a batch and its views
would still begin after the last operation of the step before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class SideStream:
    """A second stream of a GPU; on other devices, nothing."""

    def __init__(self, where: torch.device) -> None:
        self._stream = torch.cuda.Stream(where) if where.type == "cuda" else None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Run the operations of the block on this stream."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def hand_over(self, tensors: Iterable[Tensor]) -> None:
        """Let the current stream wait for this one, and use tensors that were made on it."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_stream(self._stream)
        for one in tensors:  # else their memory might be used again while the current stream still reads it
            one.record_stream(current)
