"""CPU of the server for each image of one-image requests, over that of 64-image requests, at 128 pixels.

    python benchmarks/single_image_requests.py

CPU seconds of the server and its decoding processes, from /proc; wall time of a busy machine does not count. The kinds
of requests alternate, and ratios are medians of rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import numpy as np
from PIL import Image

from benchmarks.server_process import ServerProcess

MANY = 64


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--images", type=int, default=1920, help="images of a round")
    arguments.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    chosen = arguments.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, ServerProcess(Path(folder) / "store") as server:
        asyncio.run(measure(server, chosen.rounds, chosen.images, chosen.concurrency))


async def measure(server: ServerProcess, rounds: int, images: int, concurrencies: list[int]) -> None:
    """Print the table."""
    files = [jpeg(seed) for seed in range(MANY)]
    taken: dict[str, list[float]] = {}
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        for number in range(rounds + 1):  # the first one warms up
            kinds = [(f"{MANY} a request", MANY, 2), *((f"1 a request, {n} at once", 1, n) for n in concurrencies)]
            for name, size, concurrency in kinds:
                count = images if concurrency > 1 else images // 4
                before = cpu_seconds(server.pid)
                await send(client, files, count // size, size, concurrency)
                if number:
                    taken.setdefault(name, []).append((cpu_seconds(server.pid) - before) / (count // size * size))
    base = taken[f"{MANY} a request"]
    print("| requests | CPU, ms an image | ratio |")
    print("|---|---|---|")
    for name, values in taken.items():
        ratio = statistics.median(a / b for a, b in zip(values, base, strict=True))
        print(f"| {name} | {1e3 * statistics.median(values):.2f} | {ratio:.2f} |")


async def send(client: httpx.AsyncClient, files: list[bytes], requests: int, size: int, concurrency: int) -> None:
    left = iter(range(requests))

    async def work() -> None:
        for number in left:
            if size == 1:
                answer = await client.post(
                    "/api/v1/embed", content=files[number % len(files)], headers={"Content-Type": "image/jpeg"}
                )
            else:
                answer = await client.post("/api/v1/embed", files=[("files", ("a.jpg", data)) for data in files])
            answer.raise_for_status()

    await asyncio.gather(*(work() for _ in range(concurrency)))


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    tasks = Path(f"/proc/{pid}/task")
    pids = [pid, *(int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split())]
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def jpeg(seed: int) -> bytes:
    """Return a JPEG of 128 x 128 pixels of smooth noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (16, 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((128, 128), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


if __name__ == "__main__":
    main()
