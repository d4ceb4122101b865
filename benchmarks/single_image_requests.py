"""CPU of the server for each image of one-image requests, over that of 64-image requests, at 128 pixels.

    python benchmarks/single_image_requests.py

CPU seconds of the server and its decoding processes, from /proc; wall time of a busy machine does not count. The kinds
of requests alternate, and numbers are medians of rounds. "Event loop" is HTTP, parsing and JSON. "Engine" is the
network and the threads that hand images over. The last column is the network alone, at the mean batch of the row: what
no server can avoid.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import numpy as np
from PIL import Image
from serving_processes import load

from benchmarks.server_process import ServerProcess

MANY = 64
PARTS = ("event loop", "engine", "decoding")


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--images", type=int, default=1920, help="images of a round")
    arguments.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    chosen = arguments.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    kinds = {f"{MANY} a request": (MANY, 2)} | {f"1 a request, {n} at once": (1, n) for n in chosen.concurrency}
    taken: dict[str, list[np.ndarray]] = {name: [] for name in kinds}  # ms an image by part, and the mean batch
    with tempfile.TemporaryDirectory() as scratch:
        images = Path(scratch) / "images"
        images.mkdir()
        for seed in range(MANY):
            (images / f"{seed:02}.jpg").write_bytes(jpeg(seed))
        with ServerProcess(Path(scratch) / "store") as server:
            for number in range(chosen.rounds + 1):  # the first one warms up
                for name, (size, concurrency) in kinds.items():
                    count = chosen.images if concurrency > 1 else chosen.images // 4
                    row = measure(server, images, size, concurrency, count // size)
                    if number:
                        taken[name].append(row)
    report({name: np.stack(rows) for name, rows in taken.items()})


def measure(server: ServerProcess, images: Path, size: int, concurrency: int, requests: int) -> np.ndarray:
    """Return the CPU milliseconds of each part for an image, and the mean number of images of a forward pass."""
    cpu, batches = cpu_seconds(server.pid), forward_passes(server.url)
    load(f"{server.url}/api/v1/embed", images, each=size, requests=requests, concurrency=concurrency, warm=0)
    count, passes = forward_passes(server.url) - batches
    return np.append(1e3 * (cpu_seconds(server.pid) - cpu) / count, count / passes)


def report(taken: dict[str, np.ndarray]) -> None:
    """Print the table."""
    base = taken[f"{MANY} a request"][:, :3].sum(1)
    sizes = {name: round(float(np.median(rows[:, 3]))) for name, rows in taken.items()}
    network = network_ms(sorted(set(sizes.values())))
    print(f"| requests | CPU, ms an image | ratio | {' | '.join(PARTS)} | batch | network alone |")
    print("|---|---|---|---|---|---|---|---|")
    for name, rows in taken.items():
        total = rows[:, :3].sum(1)
        parts = " | ".join(f"{one:.2f}" for one in np.median(rows[:, :3], 0))
        print(
            f"| {name} | {np.median(total):.2f} | {np.median(total / base):.2f} | {parts} | {sizes[name]} "
            f"| {network[sizes[name]]:.2f} |"
        )


def network_ms(sizes: list[int]) -> dict[int, float]:
    """Return the CPU milliseconds of the network for an image, by batch size, in a process that does nothing else."""
    from nnclr_hub.encoder.loader import load_encoder
    from nnclr_hub.hub.registry import default_model

    encoder = load_encoder(default_model(), backend="auto")
    side = encoder.transform.preprocessing.input_size
    crops = np.random.default_rng(0).integers(0, 256, (max(sizes), side, side, 3), np.uint8)
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(50):
        for size in sizes:
            begun = time.process_time()
            encoder.forward_crops(crops[:size])
            taken[size].append(1e3 * (time.process_time() - begun) / size)
    return {size: statistics.median(each) for size, each in taken.items()}


def cpu_seconds(pid: int) -> np.ndarray:
    """Return the CPU seconds of PARTS: the main thread, the other threads, and the children of a process."""
    threads = {thread.name: thread for thread in Path(f"/proc/{pid}/task").iterdir()}
    children = [child for one in threads.values() for child in (one / "children").read_text().split()]
    loop = _seconds(threads.pop(str(pid)))
    decoding = sum(_seconds(thread) for child in children for thread in Path(f"/proc/{child}/task").iterdir())
    return np.array([loop, sum(map(_seconds, threads.values())), decoding])


def _seconds(thread: Path) -> float:
    return int((thread / "schedstat").read_text().split()[0]) / 1e9


def forward_passes(url: str) -> np.ndarray:
    """Return the number of images and of batches so far."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return np.array(
        [
            sum(float(line.split()[-1]) for line in lines if line.startswith(f"nnclr_batch_images_{kind}{{"))
            for kind in ("sum", "count")
        ]
    )


def jpeg(seed: int) -> bytes:
    """Return a JPEG of 128 x 128 pixels of smooth noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (16, 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((128, 128), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


if __name__ == "__main__":
    main()
