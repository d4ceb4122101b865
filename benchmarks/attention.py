"""What a map costs beside a plain forward pass of the same network at the same size.

    python benchmarks/attention.py                          # ResNet-50 and ViT-S/16, one thread, this machine
    python benchmarks/attention.py --networks vit_small --rounds 21

"attention" is all of `encoder.attention` from a decoded picture to the values: its resizing, its forward pass, the row
of [CLS] or the product with the query, and, for a point and for a box in another picture, their look-up. The baseline
is timm's network, of its own, on an input that is ready; ViT-S is built with `dynamic_img_size`. Both run in turn, so
that what else the machine does hits both; a ratio is the median over rounds of their quotients. A map across pictures
takes two forward passes, and its ratio is to two.
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
from nnclr_hub.encoder.encoder import load_encoder

SIZES = ((224, 224), (448, 448), (640, 480))
ALLOWED = {224: 1.25}
ALLOWED_ABOVE = 1.1


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--networks", nargs="+", default=["resnet50", "vit_small"])
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--threads", type=int, default=1)
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    print(f"{chosen.threads} thread, torch {torch.__version__}, random weights, median of {chosen.rounds} rounds\n")
    print("| network | input | plain forward | no query | ratio | point | box, one target | allowed |")
    print("|---|---|---|---|---|---|---|---|")
    for name in chosen.networks:
        encoder = load_encoder(f"random:{name}", device="cpu")
        for size in SIZES:
            print(row(name, encoder, size, chosen.rounds), flush=True)
    print("\n| picture | overlay as PNG |\n|---|---|")
    for size in ((640, 480), (4000, 3000)):
        found = encoder.attention(picture(size), max_side=448)
        print(f"| {size[0]} x {size[1]} | {min(timed(found.png)[0] for _ in range(2)):.2f} s |", flush=True)


def row(name: str, encoder: Encoder, size: tuple[int, int], rounds: int) -> str:
    """One line of the table, for one network at one size."""
    pixels, other = picture(size), picture(size, seed=1)
    plain = baseline(encoder, name, pixels)
    asked: list[Callable[[], object]] = [
        lambda: encoder.attention(pixels),
        lambda: encoder.attention(pixels, Point(100, 100)),
        lambda: encoder.attention(pixels, Box(40, 40, 150, 150), target=other),
    ]
    passes, seconds = (1, 1, 2), []
    ratios: list[list[float]] = [[], [], []]
    for number in range(rounds + 1):
        base = timed(plain)[0]
        spent = [timed(one)[0] for one in asked]
        if number:  # the first round warms up
            seconds.append((base, spent[0]))
            for found, took, count in zip(ratios, spent, passes, strict=True):
                found.append(took / count / base)
    base, own = (statistics.median(column) for column in zip(*seconds, strict=True))
    middle = [statistics.median(found) for found in ratios]
    allowed = ALLOWED.get(min(size), ALLOWED_ABOVE)
    return (
        f"| {name} | {size[0]} x {size[1]} | {base * 1e3:.0f} ms | {own * 1e3:.0f} ms | {middle[0]:.2f} | "
        f"{middle[1]:.2f} | {middle[2]:.2f} | {allowed} |"
    )


def picture(size: tuple[int, int], seed: int = 0) -> np.ndarray:
    """(H, W, 3) uint8 noise."""
    return np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)


def baseline(encoder: Encoder, name: str, pixels: np.ndarray) -> Callable[[], object]:
    """timm's own network with the same weights, on an input that is ready."""
    transformer = encoder.looker.anatomy.transformer
    network = create_backbone(name, model_args={"dynamic_img_size": True} if transformer else {}).eval()
    network.load_state_dict(encoder.backbone.state_dict())
    network.to(memory_format=torch.contiguous_format if transformer else torch.channels_last)  # type: ignore[call-overload]
    x = encoder.transform.normalise(pixels[None])

    def forward() -> object:
        with torch.inference_mode():
            return network(x)

    return forward


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Seconds, and what came of it."""
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


if __name__ == "__main__":
    main()
