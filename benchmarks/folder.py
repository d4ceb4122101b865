"""Encoder.embed on a folder, compared with the loop that a user would write: timm, Pillow, torchvision, a DataLoader.

    python benchmarks/folder.py                                        # images made from scikit-image's photos
    python benchmarks/folder.py --images photos --source nnclr_resnet18_free_starter
    OMP_NUM_THREADS=1 python benchmarks/folder.py --cpu-time           # CPU seconds, for a busy machine
    python benchmarks/folder.py --size 4000 3000 --count 24            # images of a camera's size

All forms read the same files in turns and return unit vectors. Ratios are medians over the rounds. The last rows are
`nnclr embed` into shards, from the files and from a tar archive of them, written to disk and read again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import timm.data
import torch
import torch.nn.functional as F
from PIL import Image
from report import make_images
from torch.utils.data import DataLoader, Dataset

from nnclr_hub.bulk import embed_shards, open_shards
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.images.listing import list_images

BATCH = 64
SHARD = 100  # images; a few shards in each run


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--images", type=Path, default=None)
    arguments.add_argument("--count", type=int, default=192, help="number of images")
    arguments.add_argument("--size", type=int, nargs=2, default=(500, 375), help="size of the generated images")
    arguments.add_argument("--source", default="random:resnet50")
    arguments.add_argument("--backends", nargs="+", default=["torch", "auto"])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument(
        "--cpu-time", action="store_true", help="CPU seconds, including workers, instead of wall time"
    )
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.images or make_images(Path(scratch), chosen.count, tuple(chosen.size))
        paths = list_images(folder)[: chosen.count]
        archive = Path(scratch) / "images.tar"
        with tarfile.open(archive, "w") as tar:
            for index, path in enumerate(paths):
                tar.add(path, f"{index:06}{path.suffix}")
        compare(paths, archive, chosen)


def compare(paths: list[Path], archive: Path, chosen: argparse.Namespace) -> None:
    encoders = {name: load_encoder(chosen.source, device="cpu", backend=name) for name in chosen.backends}
    runs: dict[str, Callable[[], np.ndarray]] = {"the user's loop": users_loop(chosen.source, paths)}
    for name, encoder in encoders.items():
        printed = name if name == encoder.backend.name else f"{name} ({encoder.backend.name})"
        runs[f"embed, {printed}"] = lambda encoder=encoder: encoder.embed(paths)
    last = encoders[chosen.backends[-1]]
    runs |= {"shards of the files": into_shards(last, paths), "shards of an archive": into_shards(last, [archive])}
    clock = processor_seconds if chosen.cpu_time else time.perf_counter
    wanted = runs["the user's loop"]()
    cosines = {name: float((run() * wanted).sum(axis=1).min()) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(chosen.rounds):
        for name, run in runs.items():
            began = clock()
            run()
            times[name].append(clock() - began)
    with Image.open(paths[0]) as first:
        print(f"{chosen.source}, {len(paths)} images such as {first.width} x {first.height} {first.format}\n")
    print("| | ms an image | times the user's loop | worst cosine |")
    print("|---|---|---|---|")
    for name, taken in times.items():
        ratio = statistics.median(a / b for a, b in zip(times["the user's loop"], taken, strict=True))
        each = 1e3 * statistics.median(taken) / len(paths)
        print(f"| {name} | {each:.2f} | {ratio:.2f} | {cosines[name]:.5f} |")


def processor_seconds() -> float:
    """Return the CPU seconds of this process and of its finished workers."""
    return sum(os.times()[:4])


class Images(Dataset):
    """A dataset as a user would write it."""

    def __init__(self, paths: list[Path], transform: Callable) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


def users_loop(source: str, paths: list[Path]) -> Callable[[], np.ndarray]:
    """Run timm's network and transform in float32, with batches from worker processes."""
    encoder: Encoder = load_encoder(source, device="cpu")
    backbone = encoder.backbone.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    wanted = encoder.transform.preprocessing
    transform = timm.data.create_transform(
        input_size=wanted.input_size,
        crop_pct=wanted.crop_pct,
        mean=wanted.mean,
        std=wanted.std,
        interpolation=wanted.interpolation,
    )

    @torch.inference_mode()
    def run() -> np.ndarray:
        loader = DataLoader(Images(paths, transform), batch_size=BATCH, num_workers=2)  # type: ignore[arg-type]
        return torch.cat([F.normalize(backbone(x)) for x in loader]).numpy()

    return run


def into_shards(encoder: Encoder, given: list[Path]) -> Callable[[], np.ndarray]:
    """Embed into a new folder of shards and read them again."""

    def run() -> np.ndarray:
        with tempfile.TemporaryDirectory() as scratch:
            embed_shards(Path(scratch), given, encoder, shard_size=SHARD)
            return np.concatenate([shard.vectors for shard in open_shards(Path(scratch))])

    return run


if __name__ == "__main__":
    main()
