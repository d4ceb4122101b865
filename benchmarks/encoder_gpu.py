"""Encoder.embed on JPEGs from disk beside the network alone, on a GPU, and what bounds it.

    python benchmarks/encoder_gpu.py --data PHOTOS --minutes 5 --out results
    python benchmarks/encoder_gpu.py --toy --device cpu --out /tmp/toy

For each network and backend: images/s of the network on crops that lie on the device (its ceiling), of the backend on
crops in memory (with the transfer), and of `Encoder.embed` on the files. Beside them what the ways to get crops reach
by themselves: Pillow in threads as the encoder does it, and torchvision's decoder on the GPU (nvJPEG), followed by the
same resize on the device. The slowest stage bounds `embed`; the last column names it. `compile` on a GPU is one CUDA
graph for each of a few batch sizes. Rows are appended to OUT/encoder_gpu.md and .jsonl as they come.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F
from gpu_report import Report
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from nnclr_hub.encoder.backbones import create_backbone
from nnclr_hub.encoder.device import find_device
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.image_folder import list_images
from nnclr_hub.encoder.prefetching import prepared_ahead
from nnclr_hub.encoder.preprocess import EvalTransform, Preprocessing
from nnclr_hub.errors import NNCLRHubError

NETWORKS = {"resnet50": 224, "vit_small_patch16_224": 224}
BACKENDS = ("torch", "torch-bf16", "compile-bf16")
SECONDS = 3.0  # of a measurement
COLUMNS = ("network", "backend", "what", "batch", "images/s", "of the network alone", "bound by")


def main(given: Sequence[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--data", type=Path, help="folder of JPEGs; default some made here, 500 x 375")
    arguments.add_argument("--pictures", type=int, default=2048, help="most that are taken")
    arguments.add_argument("--batch", type=int, default=256)
    arguments.add_argument("--networks", nargs="+", default=list(NETWORKS), help="timm's names")
    arguments.add_argument("--backends", nargs="+", default=list(BACKENDS))
    arguments.add_argument("--minutes", type=float, default=5.0, help="no network is begun after that")
    arguments.add_argument("--device", default=None)
    arguments.add_argument("--toy", action="store_true", help="a tiny network, few pictures")
    chosen = arguments.parse_args(given)
    if chosen.toy:
        chosen.networks, chosen.backends, chosen.pictures, chosen.batch = ["test_resnet"], ["torch"], 8, 4
    where, until = find_device(chosen.device), time.monotonic() + 60 * chosen.minutes
    report = Report(chosen.out, "encoder_gpu", where, COLUMNS)
    files = images_of(chosen)
    for name in chosen.networks:
        side = NETWORKS.get(name, 160 if chosen.toy else 224)
        ways = decoding_rows(files, side, chosen.batch, where, report)
        for backend in chosen.backends:
            if time.monotonic() > until:
                report.note(f"left out for want of time: {name} with {backend}.")
                continue
            try:
                network_rows(name, backend, side, files, chosen.batch, where, ways, report)
            except (NNCLRHubError, RuntimeError) as error:  # the other rows are worth having
                report.add({"network": name, "backend": backend, "what": in_words(error)})


def in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def images_of(chosen: argparse.Namespace) -> list[Path]:
    if chosen.data:
        files = [path for path in list_images(chosen.data) if path.suffix.lower() in (".jpg", ".jpeg")]
        return files[: chosen.pictures]
    folder, rng = chosen.out / "pictures", np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number}.jpg" for number in range(min(chosen.pictures, 256))]
    for path in files:
        noise = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        noise.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=87)
    return [files[number % len(files)] for number in range(chosen.pictures)]


def rate(run: Callable[[], object], images: int, where: torch.device) -> float:
    """Images/s, after one run that is not counted."""
    run()
    taken, began = 0, time.perf_counter()
    while taken == 0 or time.perf_counter() - began < SECONDS:
        run()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        taken += images
    return taken / (time.perf_counter() - began)


def decoding_rows(files: list[Path], side: int, batch: int, where: torch.device, report: Report) -> dict[str, float]:
    """Images/s of the ways from files to crops."""
    transform = EvalTransform(Preprocessing(side))

    def in_threads() -> None:
        for _ in prepared_ahead(files, transform.read, batch):
            pass

    ways = {"decoding in threads, Pillow": rate(in_threads, len(files), where)}
    if where.type == "cuda":
        what = "decoding on the GPU, nvJPEG, and resize there"
        try:
            ways[what] = rate(lambda: on_the_gpu(files[:batch], side, where), batch, where)
        except RuntimeError as error:  # torchvision may be built without it
            report.add({"what": f"{what}: {in_words(error)}", "batch": batch})
    for what, images in ways.items():
        report.add({"what": what, "batch": batch, "images/s": images})
    return ways


def on_the_gpu(files: Sequence[Path], side: int, where: torch.device) -> torch.Tensor:
    """(N, side, side, 3) uint8 crops: bytes from disk, decoded together, each resized and cut by itself."""
    content = [torch.from_numpy(np.fromfile(path, np.uint8)) for path in files]
    decoded = decode_jpeg(content, mode=ImageReadMode.RGB, device=where)
    short = round(side / Preprocessing().crop_pct)
    crops = []
    for picture in decoded:
        height, width = picture.shape[1:]
        scale = short / min(height, width)
        size = [round(height * scale), round(width * scale)]
        resized = F.interpolate(picture[None].float(), size, mode="bicubic", antialias=True).clamp_(0, 255)
        top, left = (size[0] - side) // 2, (size[1] - side) // 2
        crops.append(resized[0, :, top : top + side, left : left + side])
    return torch.stack(crops).round_().to(torch.uint8).permute(0, 2, 3, 1)


def network_rows(
    name: str,
    backend: str,
    side: int,
    files: list[Path],
    batch: int,
    where: torch.device,
    ways: dict[str, float],
    report: Report,
) -> None:
    """The network alone, with the transfer, and from files."""
    encoder = Encoder(
        create_backbone(name), Preprocessing(side), device=where, backend=backend, batch_size=batch, name=name
    )
    crops = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    about = {"network": name, "backend": backend, "batch": batch}
    moved = rate(lambda: encoder.backend.run(crops), batch, where)
    graphs = backend.startswith("compile")  # their input is copied into the graph, wherever it lies
    alone = moved if graphs else max(moved, resident(encoder, crops, where))
    what = "network alone, with the transfer" if graphs else "network alone, crops on the device"
    report.add({**about, "what": what, "images/s": alone, "of the network alone": 1.0})
    report.add({**about, "what": "crops in memory", "images/s": moved, "of the network alone": moved / alone})
    embedded = rate(lambda: encoder.embed(files), len(files), where)
    stages = {"the network": alone, "the transfer": moved, next(iter(ways)): next(iter(ways.values()))}
    bound = min(stages, key=lambda stage: stages[stage])
    report.add(
        {
            **about,
            "what": "Encoder.embed, JPEGs from disk",
            "images/s": embedded,
            "of the network alone": embedded / alone,
            "bound by": f"{bound} ({stages[bound]:,.0f})",
        }
    )


def resident(encoder: Encoder, crops: np.ndarray, where: torch.device) -> float:
    """Images/s of the network on crops that lie on the device."""
    network, there = encoder.backend._network, torch.from_numpy(crops).to(where)  # type: ignore[attr-defined]

    @torch.inference_mode()
    def run() -> torch.Tensor:
        with torch.autocast(where.type, torch.bfloat16, enabled=encoder.precision == "bf16"):
            return network(there)

    return rate(run, len(crops), where)


if __name__ == "__main__":
    main()
