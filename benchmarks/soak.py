"""A long run at saturation: is every request answered once, is the memory flat, is the server ready at the end?

    python benchmarks/soak.py --minutes 10 --plot soak.png

More callers than the server has capacity for send embeddings, searches, uploads, vectors and deletions without a pause.
5% of the images are damaged, and callers cancel 8% of the requests. At the end the server must be ready, hold exactly
what it acknowledged, and stop cleanly after SIGTERM. The exit code is 1 if any of this fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

if __name__ == "__main__":  # the checkout, wherever it is called from
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.server_process import ServerProcess
from benchmarks.soak_load import COLLECTION, Caller, Heard, Ledger, make_images

SETTLED = 0.4  # share of the run after which memory has to be flat: pools, caches and the index have grown by then
MAY_GROW = 0.05  # of it, over the rest of the run


@dataclass(frozen=True)
class Sample:
    """The server's process at one time: seconds since the start, resident MB, open files, threads."""

    at: float
    rss: float
    files: int
    threads: int


@dataclass(frozen=True)
class Soak:
    """Result of a run."""

    heard: Heard
    samples: Sequence[Sample]
    wrong: Sequence[str]
    seconds: float

    def settled(self) -> list[Sample]:
        """Return the samples of the part in which nothing may grow."""
        return [one for one in self.samples if one.at >= SETTLED * self.seconds]

    @property
    def slope(self) -> float:
        """MB a minute over that part, by least squares."""
        settled = self.settled()
        return 60 * float(np.polyfit([one.at for one in settled], [one.rss for one in settled], 1)[0])

    @property
    def growth(self) -> float:
        """How much larger its second half is than its first, as a share."""
        rss = [one.rss for one in self.settled()]
        half = len(rss) // 2
        return float(np.median(rss[half:]) / np.median(rss[:half])) - 1


def sample(pid: int, began: float) -> Sample:
    """Read /proc."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Sample(time.monotonic() - began, int(status["VmRSS"].split()[0]) / 1000, files, int(status["Threads"]))


async def load(
    server: ServerProcess, seconds: float, requests: int, callers: int, dim: int
) -> tuple[Heard, list[Sample], Ledger]:
    """Run callers for a time and a number of requests; return responses, samples and the expected content."""
    heard, samples, began = Heard(), [], time.monotonic()

    def enough() -> bool:
        return time.monotonic() - began >= seconds and heard.requests >= requests

    images = make_images(64)
    # a connection that the server closes as idle, while it is being used again, would look like a lost request
    limits = httpx.Limits(max_connections=callers, max_keepalive_connections=callers, keepalive_expiry=1.0)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        crowd = [Caller(i, http, dim, images, heard) for i in range(callers)]
        running = [asyncio.create_task(caller.run(enough)) for caller in crowd]
        while not all(task.done() for task in running):
            samples.append(sample(server.pid, began))
            await asyncio.wait(running, timeout=min(1.0, seconds / 40))
        for task in running:
            task.result()
    ledger = Ledger()
    for caller in crowd:
        ledger.there |= caller.ledger.there
        ledger.unsure |= caller.ledger.unsure
    return heard, samples, ledger


def listed(http: httpx.Client) -> list[str]:
    """Return the ids of the collection, page by page."""
    ids, cursor = [], None
    while True:
        body = http.get(f"{COLLECTION}/items", params={"limit": 500} | ({"cursor": cursor} if cursor else {})).json()
        ids += [item["id"] for item in body["items"]]
        cursor = body["cursor"]
        if cursor is None:
            return ids


def soak(folder: Path, seconds: float, *, requests: int = 0, callers: int = 48, model: str | None = None) -> Soak:
    """Run from an empty store to the server's end; longer than `seconds` if `requests` take longer."""
    # room for a quarter of the callers' images, so that it is refused what it cannot take
    with ServerProcess(folder / "store", model=model, capacity=max(4, callers // 4), deadline_s=20) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            dim = http.put(COLLECTION, json={}).json()["dim"]
            heard, samples, ledger = asyncio.run(load(server, seconds, requests, callers, dim))
            wrong = list(heard.wrong)
            # broken-off writes that the server had taken in are still being done
            time.sleep(2)
            ready = http.get("/readyz")
            wrong += [] if ready.status_code == 200 else [f"not ready at the end: {ready.text}"]
            ids = listed(http)
            twice = [id for id, count in Counter(ids).items() if count > 1]
            wrong += [f"listed twice: {twice[:5]}"] if twice else []
            wrong += ledger.differences(set(ids))
            count = http.get(COLLECTION).json()["count"]
            wrong += [] if count == len(ids) else [f"it counts {count} items and lists {len(ids)}"]
        code = server.terminate()
        wrong += [] if code == 0 else [f"SIGTERM ended it with {code}"]
        wrong += ["its log holds a traceback"] if "Traceback" in server.log.read_text() else []
    return Soak(heard, samples, wrong, max(seconds, samples[-1].at))


def judge_memory(done: Soak) -> list[str]:
    """Return sentences if the process grew after it had settled."""
    wrong = [] if done.growth <= MAY_GROW else [f"memory grew by {done.growth:.1%} after it had settled"]
    settled = done.settled()
    for name in ("files", "threads"):
        first, last = (getattr(settled[i], name) for i in (0, -1))
        wrong += [f"open {name} went from {first} to {last}"] if last > first + 60 else []
    return wrong


def table(done: Soak) -> str:
    """Return the outcomes as Markdown."""
    rows = [
        "| request | " + " | ".join(outcomes := sorted({o for _, o in done.heard.outcomes})) + " | p50 ms | p99 ms |"
    ]
    rows += ["|---" * (len(outcomes) + 3) + "|"]
    for kind in sorted({kind for kind, _ in done.heard.outcomes}):
        counts = [str(done.heard.outcomes[kind, outcome] or "") for outcome in outcomes]
        times = 1000 * np.percentile(done.heard.seconds.get(kind) or [np.nan], (50, 99))
        rows.append(f"| {kind} | " + " | ".join(counts) + f" | {times[0]:.0f} | {times[1]:.0f} |")
    settled = done.settled()
    rows += [
        "",
        f"{done.heard.requests} requests in {done.seconds:.0f} s, {done.heard.requests / done.seconds:.0f} a second; "
        f"memory {settled[0].rss:.0f} to {settled[-1].rss:.0f} MB after it had settled, {done.slope:+.2f} MB a minute, "
        f"at most {max(one.rss for one in done.samples):.0f} MB; open files {settled[0].files} to {settled[-1].files}, "
        f"threads {settled[0].threads} to {settled[-1].threads}",
    ]
    return "\n".join(rows)


def plot(done: Soak, path: Path) -> None:
    """Plot memory over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.5), layout="constrained")
    minutes = [one.at / 60 for one in done.samples]
    axes.plot(minutes, [one.rss for one in done.samples], label="resident memory")
    axes.axvline(SETTLED * done.seconds / 60, color="gray", linestyle=":", label="flat from here on")
    axes.set(
        xlabel="minutes", ylabel="MB", title=f"{done.heard.requests} requests at saturation, {done.slope:+.2f} MB/min"
    )
    axes.set_ylim(0, None)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Run the soak and print its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--callers", type=int, default=48)
    parser.add_argument("--model", help="source of the encoder; the best starter by default")
    parser.add_argument("--plot", type=Path, help="PNG of the memory over time")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = soak(Path(folder), 60 * chosen.minutes, callers=chosen.callers, model=chosen.model)
    wrong = [*done.wrong, *judge_memory(done)]
    print(table(done))
    print("\n".join(f"WRONG: {sentence}" for sentence in wrong[:20]) or "every request answered once; all that was "
          "acknowledged is there, once; memory flat; ready at the end")  # fmt: skip
    if chosen.plot:
        plot(done, chosen.plot)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
