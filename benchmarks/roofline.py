"""What the device can do at most, measured, and what a step asks of it, counted.

`matrix_rate` is what large matrix products reach here and now, on random values (zeros would use less power, and so run
faster); `copy_rate` what a plain copy reaches. FLOPs are torch's own count of matrix products and convolutions, forward
and backward: a multiply-add is two.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.utils.flop_counter import FlopCounterMode
from training_loop import MODEL, Loops, wait

SIDE = {"cuda": 8192, "cpu": 512}
BYTES = {"cuda": 2**31, "cpu": 2**24}


def matrix_rate(where: torch.device, dtype: torch.dtype, seconds: float = 1.0) -> float:
    """FLOP/s of square products, the best of some runs that take about so many seconds together."""
    side = SIDE[where.type]
    a, b = (torch.randn(side, side, device=where, dtype=dtype) for _ in range(2))
    return 2 * side**3 / best_of(lambda: a @ b, where, seconds)


def copy_rate(where: torch.device, seconds: float = 0.5) -> float:
    """Bytes/s read and written by a copy."""
    a = torch.zeros(BYTES[where.type], dtype=torch.uint8, device=where)
    b = torch.empty_like(a)
    return 2 * a.numel() / best_of(lambda: b.copy_(a), where, seconds)


def best_of(run: Callable[[], object], where: torch.device, seconds: float) -> float:
    """Seconds of the fastest of some runs, each long enough to measure, that take about `seconds` together."""
    run()
    wait(where)
    began = time.perf_counter()
    run()
    wait(where)
    once = max(time.perf_counter() - began, 1e-7)
    each = max(1, min(1000, round(seconds / 5 / once)))
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(each):
            run()
        wait(where)
        best = min(best, (time.perf_counter() - began) / each)
    return best


def step_flops(loops: Loops) -> float:
    """FLOPs of one optimizer step on views made once, both views, forward and backward, heads and look-up too.

    Counted without compilation, which would hide the products from the count.
    """
    with torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False) as counter:
        loops.step(MODEL)
    return float(counter.get_total_flops())
