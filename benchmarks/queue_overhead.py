"""Cost of the support set: time of lookup and enqueue as a share of a training step, and memory.

    python benchmarks/queue_overhead.py                   # ResNet-18 at 32 pixels on a CPU, ResNet-50 at 224 on a GPU
    python benchmarks/queue_overhead.py --batches 256 4096

The baseline is the same step of SimCLR, which has no support set: two views forward and backward, and the optimizer.
The paper's table "Queue size computational overheads" reports 5.68 steps per second at 98,304 rows and 6.41 at 8,192.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.method import METHODS, Learner, PredictionHead, ProjectionHead, SupportSet

SIZES = (8192, 16_384, 32_768, 65_536, 98_304)
DIM = 256


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--batches", type=int, nargs="+", default=[256, 1024])
    arguments.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    arguments.add_argument("--repeats", type=int, default=5)
    chosen = arguments.parse_args()
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name, side = ("resnet50", 224) if where.type == "cuda" else ("resnet18", 32)
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high")
        print(torch.cuda.get_device_name())
    print(f"{name} at {side} pixels, {torch.get_num_threads()} threads, torch {torch.__version__}, d = {DIM}\n")
    print("| batch | rows of Q | memory of Q | lookup of 2 views + enqueue | SimCLR step | share of the NNCLR step |")
    print("|---|---|---|---|---|---|")
    for batch in chosen.batches:
        step = seconds(training_step(name, side, batch, where), max(1, chosen.repeats // 2), where)
        for size in chosen.sizes:
            support = SupportSet(size, DIM).to(where)
            queue = seconds(queue_step(support, batch, where), chosen.repeats, where)
            memory = sum(buffer.numel() * buffer.element_size() for buffer in support.buffers()) / 1e6
            share = queue / (queue + step)
            print(
                f"| {batch} | {size:,} | {memory:.1f} MB | {queue * 1e3:.1f} ms | {step * 1e3:.0f} ms | {share:.1%} |",
                flush=True,
            )


def training_step(name: str, side: int, batch: int, where: torch.device) -> Callable[[], None]:
    """Return a step of SimCLR with NNCLR's heads: two views forward, backward, and the optimizer."""
    backbone = create_backbone(name)
    learner = Learner(backbone, METHODS["simclr"], ProjectionHead(int(backbone.num_features)), PredictionHead())
    learner = learner.to(where, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(learner.parameters(), lr=1e-3, momentum=0.9)
    views = [torch.randn(batch, 3, side, side, device=where).contiguous(memory_format=torch.channels_last)] * 2

    def run() -> None:
        with torch.autocast(where.type, torch.bfloat16):
            loss = learner(views).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def queue_step(support: SupportSet, batch: int, where: torch.device) -> Callable[[], None]:
    """Return the additional work of NNCLR: two lookups with the sample's own rows masked, and an enqueue."""
    z1, z2 = (torch.randn(batch, DIM, device=where) for _ in range(2))
    ids = torch.arange(batch, device=where)

    def run() -> None:
        support.lookup(z1, ids=ids)
        support.lookup(z2, ids=ids)
        support.enqueue(z1, ids=ids)

    return run


def seconds(run: Callable[[], None], repeats: int, where: torch.device) -> float:
    """Median time of a run after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        wait(where)
        began = time.perf_counter()
        run()
        wait(where)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
