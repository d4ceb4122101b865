"""The p99 over p50 that queueing alone causes when requests arrive at random times.

    python benchmarks/serving_queue.py --measure random:resnet50@0      # times forward passes here, then simulates
    python benchmarks/serving_queue.py --forward-ms 1:24 32:660         # simulates with known times

The simulated device works whenever requests wait, with the measured time of a forward pass at each batch size (linear
between sizes) and no other cost: no network, no decoding. Images arrive as in `serving.py`, one per request, at 70% of
the rate of full batches. Policies determine how many waiting images form the next batch. "one, fixed time" is the queue
M/D/1, whose mean latency is known (Pollaczek-Khinchine) and is checked here. "half the device, twice" has two devices
that take twice the time each, like one core each. The last number uses the arrival times of serving.py itself.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

MOST = 32  # images a batch
LONG, SHORT = 200_000, 320  # requests of the long run, and of a run of serving.py


@dataclass(frozen=True)
class Policy:
    """choose: number of waiting images to take. devices: number of devices; each takes `devices` times as long."""

    choose: Callable[[int], int]
    devices: int = 1


POLICIES = {
    "one": Policy(lambda waiting: 1),
    "at most two": Policy(lambda waiting: 2),
    "at most four": Policy(lambda waiting: 4),
    "all that wait (ours)": Policy(lambda waiting: waiting),
    "half of them": Policy(lambda waiting: (waiting + 1) // 2),
    "their square root": Policy(lambda waiting: round(waiting**0.5)),
    "the power of two below": Policy(lambda waiting: 1 << (waiting.bit_length() - 1)),
    "all, half the device, twice": Policy(lambda waiting: waiting, devices=2),
    "one, half the device, twice": Policy(lambda waiting: 1, devices=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", metavar="MODEL", help="whose forward passes to time")
    parser.add_argument("--forward-ms", nargs="+", default=[], metavar="SIZE:MS", help="times that are known")
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--requests", type=int, default=LONG)
    chosen = parser.parse_args()
    if chosen.measure:
        times = measured(chosen.measure)
    elif chosen.forward_ms:
        times = {int(size): float(ms) / 1000 for size, _, ms in (one.partition(":") for one in chosen.forward_ms)}
    else:
        parser.error("give --measure MODEL or --forward-ms SIZE:MS ...")
    print("forward pass, ms: " + ", ".join(f"{size}: {1000 * seconds:.1f}" for size, seconds in times.items()))
    largest = max(times)
    fixed = times[largest] / largest
    rate = chosen.load / fixed
    check(rate, fixed, chosen.requests)
    print(f"{rate:.1f} requests/s, {chosen.load:.0%} of {1 / fixed:.1f}; {chosen.requests:,} requests, and {SHORT}:")
    tell("one, fixed time (M/D/1)", Policy(lambda waiting: 1), {1: fixed}, rate, chosen.requests)
    for name, policy in POLICIES.items():
        tell(name, policy, times, rate, chosen.requests)


def tell(name: str, policy: Policy, times: dict[int, float], rate: float, count: int) -> None:
    """Print a line about a policy."""
    p50, p99 = np.quantile(simulate(policy, times, moments(rate, count)), [0.5, 0.99])
    few50, few99 = np.quantile(simulate(policy, times, moments(rate, SHORT)), [0.5, 0.99])
    line = f"p50 {1000 * p50:4.0f} ms, p99 {1000 * p99:4.0f} ms, p99/p50 {p99 / p50:.2f}"
    print(f"{name:28} {line} | {1000 * few50:4.0f}, {1000 * few99:4.0f}, {few99 / few50:.2f}", flush=True)


def moments(rate: float, count: int) -> np.ndarray:
    """Return (count,) arrival times in seconds, those of serving_load.py."""
    draws = random.Random(0)
    return np.cumsum([draws.expovariate(rate) for _ in range(count)])


def simulate(policy: Policy, times: dict[int, float], arrivals: np.ndarray) -> np.ndarray:
    """Return (count,) seconds from each arrival to its response, first come first served."""
    count = len(arrivals)
    lasts = np.interp(np.arange(MOST + 1), list(times), list(times.values())) * policy.devices
    latencies = np.empty(count)
    free = [0.0] * policy.devices
    first = 0
    while first < count:
        now = max(heapq.heappop(free), arrivals[first])
        waiting = int(np.searchsorted(arrivals, now, side="right")) - first
        size = min(max(1, policy.choose(waiting)), waiting, MOST)
        end = now + lasts[size]
        latencies[first : first + size] = end - arrivals[first : first + size]
        first += size
        heapq.heappush(free, end)
    return latencies


def check(rate: float, fixed: float, count: int) -> None:
    """Compare the simulation of M/D/1 with the formula for its mean."""
    busy = rate * fixed
    known = fixed * (1 + busy / (2 * (1 - busy)))
    found = simulate(Policy(lambda waiting: 1), {1: fixed}, moments(rate, count)).mean()
    if abs(found - known) > 0.1 * known:
        raise SystemExit(f"The simulation is wrong: M/D/1 has a mean of {known:.4f} s, and it gives {found:.4f} s.")


def measured(model: str, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32), rounds: int = 7) -> dict[int, float]:
    """Measure the seconds of a forward pass by batch size: medians, with the sizes in turns."""
    from nnclr_hub.encoder.loader import load_encoder

    encoder = load_encoder(model, backend="auto")
    side = encoder.transform.preprocessing.input_size
    crops = np.random.default_rng(0).integers(0, 256, (max(sizes), side, side, 3), np.uint8)
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for size in sizes:
            begun = time.perf_counter()
            encoder.forward_crops(crops[:size])
            if turn:  # the first one warms up
                taken[size].append(time.perf_counter() - begun)
    print(f"{model} on {encoder.backend.name}, {rounds} rounds")
    return {size: statistics.median(each) for size, each in taken.items()}


if __name__ == "__main__":
    main()
