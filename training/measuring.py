"""How an encoder is measured in the middle of a run: as its exported weights will be, wherever they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def measuring() -> Iterator[None]:
    """Forward passes of an encoder that figures are made of; what a run has set for its steps comes back after them.

    - Eagerly, and without cuDNN trying its algorithms: the last batch of each set has a size of its own, and each
      size would cost seconds of compiling or trying, for a pass or two.
    - In float32 without TF32: rounded to ten bits, some images change their neighbors, and the figure is no longer
      the one that another device finds.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision()
    cudnn.benchmark, cudnn.allow_tf32 = False, False
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32 = before[:2]
        torch.set_float32_matmul_precision(before[2])
