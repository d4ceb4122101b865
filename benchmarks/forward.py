"""Speed of each backend for a network, and the distance of its vectors from the plain loop's.

    python benchmarks/forward.py                          # the starters, ResNet-50 and ViT-S at 224, this machine
    python benchmarks/forward.py --networks resnet50 --batches 1 32 --rounds 9
    python benchmarks/forward.py --threads 1 --cpu-time   # CPU seconds, for a busy machine

The baseline is the simplest loop: timm's network in float32, images normalized by torch, under inference_mode. Every
backend gets the same crops as uint8 and takes turns with the baseline, so that other work on the machine affects both.
A ratio is the median over rounds. Networks without trained weights get random norms, biases and statistics, because the
residual branches of a new ResNet have no effect. Cosines compare with the baseline; the table has the worst of the
images. "onnx" is what FastEmbed runs: ONNX Runtime in float32.
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
from torch import nn

from nnclr_hub.encoder.backbones import create_backbone, is_convolutional
from nnclr_hub.encoder.backends import Backend, open_backend
from nnclr_hub.encoder.backends.network import Network
from nnclr_hub.encoder.backends.probe_batch import probe_images, worst_cosine
from nnclr_hub.encoder.device import find_device
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.hub.registry import MODELS

BACKENDS = ("torch", "torch-bf16", "openvino", "openvino-bf16", "onnx")


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--networks", nargs="+", default=[*MODELS, "resnet50", "vit_small"])
    arguments.add_argument("--backends", nargs="+", default=list(BACKENDS), help="also compile, compile-bf16")
    arguments.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--device", default=None)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--cpu-time", action="store_true", help="CPU seconds instead of wall time")
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    device = find_device(chosen.device)
    clock = time.process_time if chosen.cpu_time else time.perf_counter
    counted = "processor" if chosen.cpu_time else "wall"
    print(f"{device}, {counted} time, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| network | batch | backend | ms an image | times the plain loop | worst cosine |")
    print("|---|---|---|---|---|---|")
    for name in chosen.networks:
        for row in compare(name, chosen.backends, chosen.batches, device, (chosen.rounds, clock)):
            print(row, flush=True)


def compare(
    name: str, backends: list[str], batches: list[int], device: torch.device, how: tuple[int, Callable[[], float]]
) -> list[str]:
    """Return the rows of the table for one network; `how` holds rounds and clock."""
    backbone, preprocessing = network_of(name)
    crops = probe_images(preprocessing.input_size, max(batches))
    plain = plain_loop(backbone.to(device), preprocessing, device)
    wanted = plain(crops)
    # channels last is the encoder's choice for convolutions, not the plain loop's, so it has a separate copy
    layout = torch.channels_last if is_convolutional(backbone) else torch.contiguous_format
    other = network_of(name)[0].to(device, memory_format=layout)  # type: ignore[call-overload]
    network = Network(other, preprocessing).to(device)
    opened: dict[str, Backend] = {}
    rows = []
    for backend in backends:
        try:
            opened[backend] = open_backend(backend, network, device)
        except NNCLRHubError as error:
            rows.append(f"| {name} | | {backend} | {error} | | |")
    for batch in batches:
        part = crops[:batch]
        runs: dict[str, Callable[[np.ndarray], np.ndarray]] = {"plain loop": plain}
        runs |= {backend: one.run for backend, one in opened.items()}
        cosines = {one: worst_cosine(run(part), wanted[:batch]) for one, run in runs.items()}  # this also warms up
        times = by_turns(runs, part, *how)
        for one, taken in times.items():
            ratio = statistics.median(a / b for a, b in zip(times["plain loop"], taken, strict=True))
            each = 1e3 * statistics.median(taken) / batch
            rows.append(f"| {name} | {batch} | {one} | {each:.2f} | {ratio:.2f} | {cosines[one]:.6f} |")
    return rows


def by_turns(
    runs: dict[str, Callable[[np.ndarray], np.ndarray]], crops: np.ndarray, rounds: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Return the seconds of each run in each round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = clock()
            run(crops)
            times[name].append(clock() - began)
    return times


def network_of(name: str) -> tuple[nn.Module, Preprocessing]:
    """Return a starter with its trained weights, or an architecture with random ones."""
    if name in MODELS:
        encoder = load_encoder(name, device="cpu")
        return encoder.backbone, encoder.transform.preprocessing
    torch.manual_seed(0)
    backbone = create_backbone(name).eval()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return backbone, Preprocessing(224)


def plain_loop(
    backbone: nn.Module, preprocessing: Preprocessing, device: torch.device
) -> Callable[[np.ndarray], np.ndarray]:
    """Return the simplest loop: (N, S, S, 3) uint8 -> (N, D) float32."""
    backbone = backbone.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    mean, std = (
        torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (preprocessing.mean, preprocessing.std)
    )

    @torch.inference_mode()
    def run(crops: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(crops).to(device).permute(0, 3, 1, 2).contiguous().float()
        return backbone(x.div_(255).sub_(mean).div_(std)).cpu().numpy()

    return run


if __name__ == "__main__":
    main()
