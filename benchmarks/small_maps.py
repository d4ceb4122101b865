"""Convolutions of small feature maps on a CPU: oneDNN's next to matrix products, behind `training.small_maps.Limits`.

    python benchmarks/small_maps.py
    python benchmarks/small_maps.py --precision fp32
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python benchmarks/small_maps.py     # as on a CPU without AMX

Milliseconds of a batch, the fastest of some turns: of the output, and of both gradients, in which the product may be
used for the weights alone or for both. The limits choose one column each by precision, width and side of the output.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch.nn import functional as F

from training.assemble import choose_precision
from training.cpu import keep_freed_memory
from training.small_maps import convolve, convolve_backward

# in, out, kernel, stride, side of the output
SHAPES = [
    *((512, 512, 3, 1, side) for side in (1, 2, 3, 4)),
    *((256, 512, 3, 2, side) for side in (2, 4)),
    *((2048, 512, 1, 1, side) for side in (2, 4)),
    *((256, 512, 1, 2, side) for side in (2, 4)),
    *((256, 256, 3, 1, side) for side in (2, 3, 4, 6, 8)),
    *((128, 128, 3, 1, side) for side in (2, 4)),
]


def milliseconds(run: Callable[[], object], turns: int) -> float:
    """Return those of the fastest turn, after two that are not counted."""
    spent = []
    for _ in range(turns + 2):
        began = time.perf_counter()
        run()
        spent.append(time.perf_counter() - began)
    return 1000 * min(spent[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precision", choices=["auto", "bf16", "fp32"], default="auto")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    precision = choose_precision(options.precision, torch.device("cpu"))
    keep_freed_memory()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {precision}, batch {options.batch}\n")
    print("| convolution | output | output: oneDNN | product | gradients: oneDNN | product for weights | for both |")
    print("|---|---|---|---|---|---|---|")
    for inputs, outputs, kernel, stride, side in SHAPES:
        padding = kernel // 2
        kind = {"dtype": torch.bfloat16 if precision == "bf16" else torch.float32}
        layout = {"memory_format": torch.channels_last}
        x = torch.randn(options.batch, inputs, side * stride, side * stride, **kind).contiguous(**layout)
        weight = torch.randn(outputs, inputs, kernel, kernel, **kind).contiguous(**layout)
        grad = torch.randn(options.batch, outputs, side, side, **kind).contiguous(**layout)
        needed = [True, True, False]
        given = (grad, x, weight, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, needed)
        runs = [
            lambda x=x, weight=weight, how=(stride, padding): F.conv2d(x, weight, None, *how),
            lambda x=x, weight=weight, how=(stride, padding): convolve(x, weight, *how, True),
            lambda given=given: torch.ops.aten.convolution_backward(*given),
            *(
                lambda grad=grad, x=x, weight=weight, how=(stride, padding, product): convolve_backward(
                    grad, x, weight, *how
                )
                for product in (False, True)
            ),
        ]
        with torch.no_grad():
            spent = " | ".join(f"{milliseconds(run, options.turns):.1f}" for run in runs)
        of_stride = f", stride {stride}" if stride > 1 else ""
        print(f"| {kernel} x {kernel}{of_stride}, {inputs} -> {outputs} | {side} x {side} | {spent} |")


if __name__ == "__main__":
    main()
