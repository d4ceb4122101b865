"""Latency of ordinary requests while others send JPEGs that cost far more to decode than their size suggests.

    python benchmarks/scan_bombs.py
    python benchmarks/scan_bombs.py --rounds 8 --kinds refused

Server, attacker and client are separate processes. The client sends one image of 128 pixels per request at a fixed
rate. Phases without and with the attack alternate on the same server, and each ratio compares two neighbors. The
attacker sends 20 files at once, again as soon as all are answered, but not more often than every two seconds.

The latencies depend on other work on the machine. The last columns do not: the CPU milliseconds of the event loop's
thread while one request for /healthz is answered, the 99th percentile of many.
"""

from __future__ import annotations

import argparse
import io
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from PIL import Image
from serving_processes import load
from single_image_requests import jpeg

from benchmarks.request_meter import Meter
from benchmarks.server_process import ServerProcess

FILES, PERIOD_S = 20, 2.0
# repeated scans, and the size of the image; the limit of the filter is 100
KINDS = {"12 megapixels": (70, (4000, 3000)), "40 megapixels": (70, (8000, 5000)), "refused": (50_000, (4000, 3000))}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--attack", nargs=2, metavar=("URL", "FILE"), help="be the attacker until a line is read")
    arguments.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--rate", type=float, default=20.0, help="ordinary requests per second")
    arguments.add_argument("--requests", type=int, default=200, help="ordinary requests of a phase")
    chosen = arguments.parse_args()
    if chosen.attack:
        attack(chosen.attack[0], Path(chosen.attack[1]).read_bytes())
        return
    taken: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in chosen.kinds}
    with tempfile.TemporaryDirectory() as scratch:
        images = Path(scratch) / "images"
        images.mkdir()
        for seed in range(32):
            (images / f"{seed:02}.jpg").write_bytes(jpeg(seed))
        with ServerProcess(Path(scratch) / "store") as server:
            url = f"{server.url}/api/v1/embed"

            meter = Meter(server.url, server.pid)

            def phase() -> tuple[float, float, float]:
                with meter.polled() as turns:
                    figures = load(url, images, rate=chosen.rate, requests=chosen.requests, warm=4)
                return figures["p50"], figures["p99"], statistics.quantiles([cpu for cpu, _ in turns], n=100)[-1]

            phase()  # warms up
            for _ in range(chosen.rounds):
                for kind in chosen.kinds:
                    file = Path(scratch) / "hostile.jpg"
                    file.write_bytes(repeated_scans(*KINDS[kind]))
                    calm = phase()
                    command = [sys.executable, __file__, "--attack", url, str(file)]
                    with subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                    ) as attacker:
                        assert attacker.stdout is not None
                        assert attacker.stdout.readline() == "begun\n"
                        attacked = phase()
                        statuses, _ = attacker.communicate("end\n")
                    taken[kind].append((*calm, *attacked))
                    print(kind, *(f"{1000 * one:.0f}" for one in (*calm, *attacked)), statuses.strip(), file=sys.stderr)
    print("| hostile files | p50, ms | attacked | p99, ms | attacked | ratio of p99 | loop, ms | attacked |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, rows in taken.items():
        p50, p99, loop, *attacked = (1000 * statistics.median(column) for column in zip(*rows, strict=True))
        ratios = sorted(row[4] / row[1] for row in rows)
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(
            f"| {kind} | {p50:.0f} | {attacked[0]:.0f} | {p99:.0f} | {attacked[1]:.0f} | {ratio} | {loop:.1f} "
            f"| {attacked[2]:.1f} |"
        )


def attack(url: str, file: bytes) -> None:
    """Send bursts of files until a line is read; then print how often each status was answered."""
    statuses: dict[int, int] = {}
    stopping = threading.Event()

    def wait_for_line() -> None:
        sys.stdin.readline()
        stopping.set()

    threading.Thread(target=wait_for_line, daemon=True).start()
    with (
        httpx.Client(timeout=60, limits=httpx.Limits(max_connections=FILES)) as client,
        ThreadPoolExecutor(FILES) as all,
    ):

        def send(_: int) -> int:
            return client.post(url, files={"files": ("image.jpg", file, "image/jpeg")}).status_code

        while not stopping.is_set():
            begun = time.monotonic()
            burst = all.map(send, range(FILES))
            if not statuses:
                print("begun", flush=True)
            for status in burst:
                statuses[status] = statuses.get(status, 0) + 1
            stopping.wait(begun + PERIOD_S - time.monotonic())
    print(statuses)


def repeated_scans(scans: int, size: tuple[int, int]) -> bytes:
    """Return a progressive JPEG of one color whose last scan is repeated so often, with 0.2 to 1.5 MB."""
    file = io.BytesIO()
    Image.new("RGB", size, (90, 120, 200)).save(file, "JPEG", progressive=True, quality=50)
    whole = file.getvalue()
    last = whole[whole.rfind(b"\xff\xda") : -2]
    return whole[:-2] + last * scans + whole[-2:]


if __name__ == "__main__":
    main()
