"""Cost of an attention map, compared with a forward pass of the same network at the same size.

    python benchmarks/attention.py                          # ResNet-50 and ViT-S/16, one thread, this machine
    python benchmarks/attention.py --cpu-time               # CPU seconds, for a busy machine
    python benchmarks/attention.py --networks vit_small --rounds 21 --sizes 224 448 1024

"attention" is all of `encoder.attention` from a decoded image to the values: resizing, the forward pass, the row of
[CLS] or the product with the query, and the lookup of a point, or of a box in another image. The baseline is a
separate network of timm on a prepared input; ViT-S is built with `dynamic_img_size`. Both take turns, so that other
work on the machine affects both. A ratio is the median over rounds. A map across images takes two forward passes, and
its ratio refers to two.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from nnclr_hub import Box, Encoder, Point
from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.loader import load_encoder

ALLOWED = {True: 1.25, False: 1.1}  # below 448 pixels a side, and from there
FEWEST = 3  # rounds at any size


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--networks", nargs="+", default=["resnet50", "vit_small"])
    arguments.add_argument("--rounds", type=int, default=9, help="at 224; larger sizes have fewer")
    arguments.add_argument("--sizes", type=int, nargs="+", default=[224, 448])
    arguments.add_argument("--cpu-time", action="store_true", help="CPU seconds instead of wall time")
    arguments.add_argument("--threads", type=int, default=1)
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    what = "CPU seconds" if chosen.cpu_time else "wall time"
    print(f"{chosen.threads} thread, torch {torch.__version__}, random weights, {what}\n")
    print("| network | input | rounds | plain forward | no query | ratio | point | box, one target | allowed |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in chosen.networks:
        encoder = load_encoder(f"random:{name}", device="cpu")
        for side in chosen.sizes:
            rounds = max(FEWEST, round(chosen.rounds * (224 / side) ** 2))
            print(row(name, encoder, side, rounds, clock), flush=True)
    print("\n| image | overlay as PNG |\n|---|---|")
    for size in ((640, 480), (4000, 3000)):
        found = encoder.attention(image(size), max_side=224 * 2)
        print(f"| {size[0]} x {size[1]} | {min(timed(found.png, clock) for _ in range(2)):.2f} s |", flush=True)


def row(name: str, encoder: Encoder, side: int, rounds: int, clock: Callable[[], float]) -> str:
    """Return one line of the table, for one network at one size."""
    pixels, other = image((side, side)), image((side, side), seed=1)
    plain = baseline(encoder, name, pixels)
    maps: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: encoder.attention(pixels)),
        (1, lambda: encoder.attention(pixels, Point(100, 100))),
        (2, lambda: encoder.attention(pixels, Box(40, 40, 150, 150), target=other)),
    ]
    rows: list[list[float]] = []
    for number in range(rounds + 1):
        base, spent = timed(plain, clock), [timed(one, clock) / passes for passes, one in maps]
        if number:  # the first round warms up
            rows.append([base, spent[0], *(took / base for took in spent)])
    base, own, *ratios = (statistics.median(column) for column in zip(*rows, strict=True))
    shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
    allowed = ALLOWED[side < 448]
    return f"| {name} | {side} | {rounds} | {base * 1e3:.0f} ms | {own * 1e3:.0f} ms | {shown} | {allowed} |"


def image(size: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Return (H, W, 3) uint8 noise."""
    return np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)


def baseline(encoder: Encoder, name: str, pixels: np.ndarray) -> Callable[[], object]:
    """Return a forward pass of timm's network with the same weights, on a prepared input."""
    transformer = encoder.attention_extractor.traits.transformer
    network = create_backbone(name, model_args={"dynamic_img_size": True} if transformer else {}).eval()
    network.load_state_dict(encoder.backbone.state_dict())
    network.to(memory_format=torch.contiguous_format if transformer else torch.channels_last)  # type: ignore[call-overload]
    x = encoder.transform.normalize(pixels[None])

    def forward() -> object:
        with torch.inference_mode():
            return network(x)

    return forward


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the seconds that `work` takes by a clock."""
    began = clock()
    work()
    return clock() - began


if __name__ == "__main__":
    main()
