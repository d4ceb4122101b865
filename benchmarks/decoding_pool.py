"""Decoding in processes against decoding in threads, interleaved, and hostile images next to ordinary ones.

    python benchmarks/decoding_pool.py                     # images per second of both, at 128 pixels and 12 megapixels
    python benchmarks/decoding_pool.py --rounds 15
    python benchmarks/decoding_pool.py --hostile           # p99 of ordinary images, alone and with hostile ones

Both decoders have one worker per core and make the same crops. The ratio is the median over pairs of rounds. CPU is of
all processes together.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from PIL import Image

from nnclr_hub.encoder.prepared_batches import DECODED_TOGETHER, LIGHT
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError
from nnclr_hub.images.pool import decoding_processes
from nnclr_hub.read_ahead import batches

TRANSFORM = EvalTransform(Preprocessing(64, 1.0))  # as the default encoder
CASES = {"128 px": ((128, 128), 64, 600), "12 MP": ((4000, 3000), 4, 24)}  # size, files, images per round
WORKERS = os.cpu_count() or 1
HOSTILE = 20


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--hostile", action="store_true")
    chosen = arguments.parse_args()
    with decoding_processes(WORKERS):
        if chosen.hostile:
            next_to_hostile(chosen.rounds)
            return
        print("| images | threads, images/s | processes, images/s | ratio | CPU ratio, threads / processes |")
        print("|---|---|---|---|---|")
        for name, (size, files, count) in CASES.items():
            print(compare(name, [jpeg(size, seed) for seed in range(files)], count, chosen.rounds), flush=True)


def compare(name: str, images: list[bytes], count: int, rounds: int) -> str:
    """Return a row of the table."""
    work = (images * count)[:count]
    for data in images:
        assert (TRANSFORM.read(data) == TRANSFORM.decoded(data)).all()
    runs: dict[str, list[tuple[float, float]]] = {"threads": [], "processes": []}
    for number in range(rounds):
        order = [("threads", decoded_each), ("processes", TRANSFORM.read_each)]
        for kind, decode in order if number % 2 else order[::-1]:
            runs[kind].append(measure(decode, work))
    wall = {kind: statistics.median(count / seconds for seconds, _ in each) for kind, each in runs.items()}
    pairs = list(zip(runs["threads"], runs["processes"], strict=True))
    ratio, cpu = (statistics.median(one[i] / other[i] for one, other in pairs) for i in (0, 1))
    return f"| {name} | {wall['threads']:.0f} | {wall['processes']:.0f} | {ratio:.2f} | {cpu:.2f} |"


def measure(decode: Callable[[list[bytes]], object], work: list[bytes]) -> tuple[float, float]:
    """Return wall and CPU seconds."""
    together = DECODED_TOGETHER if len(work[0]) < LIGHT else 1  # as an encoder does
    with ThreadPoolExecutor(WORKERS) as threads:
        begun, cpu = time.perf_counter(), cpu_seconds()
        for _ in threads.map(decode, batches(work, together)):
            pass
        return time.perf_counter() - begun, cpu_seconds() - cpu


def decoded_each(images: list[bytes]) -> list[np.ndarray]:
    return [TRANSFORM.decoded(data) for data in images]


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its children, by the kernel's nanosecond counts."""
    pids: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has just ended
            pids |= set((task / "children").read_text().split())
    return time.process_time() + sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9


def next_to_hostile(rounds: int) -> None:
    """Print the p99 of ordinary images, alone and while other threads send hostile ones."""
    from hostile_images import repeated_scans

    kinds = {"refused by the filter": repeated_scans(4500), "80 scans, in the heavy lane": repeated_scans(80)}
    ordinary = jpeg((128, 128), 0)
    print("| hostile images | size, MB | p99 alone, ms | p99 next to them, ms | ratio |")
    print("|---|---|---|---|---|")
    for name, hostile in kinds.items():
        alone, under_attack = [], []
        for _ in range(rounds):
            alone += latencies(ordinary, 400)
            stop = threading.Event()

            def attack(hostile: bytes = hostile, stop: threading.Event = stop) -> None:
                for _ in range(HOSTILE):
                    if stop.is_set():
                        return
                    with suppress(ImageError):
                        TRANSFORM.read(hostile)

            with ThreadPoolExecutor(4) as threads:
                for _ in range(4):
                    threads.submit(attack)
                under_attack += latencies(ordinary, 400)
                stop.set()
        before, after = (1e3 * float(np.percentile(each, 99)) for each in (alone, under_attack))
        print(f"| {name} | {len(hostile) / 1e6:.2f} | {before:.1f} | {after:.1f} | {after / before:.2f} |", flush=True)


def latencies(image: bytes, count: int) -> list[float]:
    """Return the seconds of each image, sent one after the other."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        TRANSFORM.read(image)
        taken.append(time.perf_counter() - begun)
    return taken


def jpeg(size: tuple[int, int], seed: int) -> bytes:
    """Return a JPEG of smooth noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1] // 16, size[0] // 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


if __name__ == "__main__":
    main()
