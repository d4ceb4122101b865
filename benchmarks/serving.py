"""The server against the library's own bulk embedding and a plain FastAPI handler.

    python benchmarks/serving.py                                                # ResNet-50 at 224, everything
    python benchmarks/serving.py --model random:test_resnet --requests 64 --turns 1 --only embed
    python benchmarks/serving.py --only search,ready --json figures.json

Ratios are the result, both sides measured in turns in this run; the medians of the turns are printed, with their
range. The client runs in a separate process, on the same cores as the server; a side that is not measured is
suspended. Images: 64 crops of 480 x 360 from scikit-image's photos as JPEG. Sections:

    embed     images/s, one a request at concurrency 32, over Encoder.embed on the same images        at least 0.9
              ... 64 a request at concurrency 2                                                         at least 0.95
              images/s over a FastAPI handler with timm, torch fp32                                  at least 1.3
    latency   p99 / p50 at 70% of the images/s above, requests at random moments                        at most 3
    search    p50 by a vector over REST less p50 of the bare store call, 100,000 items                  at most 3 ms
    ready     seconds until the API is ready, over importing torch, timm, faiss, FastAPI and the model  at most 1.5
"""

from __future__ import annotations

import argparse
import base64
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from PIL import Image
from serving_processes import HERE, Side, free_port, load, ours, plain
from store_data import Clusters
from store_report import Report, seconds, spread, versions

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

SECTIONS = ("embed", "latency", "search", "ready")
PACKAGES = ("torch", "timm", "fastapi", "uvicorn", "uvloop", "httptools", "openvino")
TINY = "random:test_resnet@0"  # where the model does not matter
ITEMS, DIM, QUERIES = 100_000, 256, 300


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the sides are ended too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="random:resnet50@0")
    parser.add_argument("--requests", type=int, default=640, help="images a turn of each side")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--items", type=int, default=ITEMS, help="of the search section")
    parser.add_argument("--only", default=",".join(SECTIONS), help="some of the sections, by commas")
    parser.add_argument("--json", type=Path, help="file for the figures")
    chosen = parser.parse_args()
    wanted = chosen.only.split(",")
    report = Report(chosen.json)
    report.begin(model=chosen.model, requests=chosen.requests, turns=chosen.turns, packages=versions(PACKAGES))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        images = make_images(folder / "images")
        if "embed" in wanted or "latency" in wanted:
            embed(report, chosen, images, folder, wanted)
        if "search" in wanted:
            search(report, chosen.items, chosen.turns, folder)
        if "ready" in wanted:
            ready(report, chosen.model, chosen.turns, folder)


# ---------------------------------------------------------------- embedding


def embed(report: Report, chosen: argparse.Namespace, images: Path, folder: Path, wanted: list[str]) -> None:
    """Measure all servers in turns; each runs only while it is measured."""
    model = chosen.model
    bulk = Side([str(HERE / "serving_sides.py"), "bulk", model, str(images)])
    sides = {"bulk": (bulk, "")}
    sides["plain"] = (plain(model, free_port()), "/health")
    sides["ours"] = (ours(model, str(folder / "store"), free_port()), "/readyz")
    try:
        for side, path in sides.values():
            side.wait(path)
            side.sleep()
        speed = throughput(report, chosen, images, {name: side for name, (side, _) in sides.items()})
        if "latency" in wanted:
            latency(report, "ours", sides["ours"][0], images, 0.7 * speed, chosen)
    finally:
        for side, _ in sides.values():
            side.end()


def throughput(report: Report, chosen: argparse.Namespace, images: Path, sides: dict[str, Side]) -> float:
    """Measure the images/s of each server and their ratios, and return ours."""
    count, speeds, tails = chosen.requests, [], []
    for _ in range(chosen.turns):
        speed: dict[str, float] = {}
        tail: dict[str, float] = {}
        with sides["bulk"].awake():
            sides["bulk"].say(str(count))
            speed["bulk"] = float(sides["bulk"].line())
        for name in ("ours", "plain"):
            with sides[name].awake():
                found = load(sides[name].url, images, sides[name].form, requests=count, concurrency=32)
            speed[name], tail[name] = found["images_per_s"], found["p99"]
        with sides["ours"].awake():
            many = {"each": 64, "requests": max(2, count // 64), "concurrency": 2, "warm": 1}
            speed["ours, 64"] = load(sides["ours"].url, images, **many)["images_per_s"]
        speeds.append(speed)
        tails.append(tail)
        report.say("turns", {"images_per_s": speeds, "p99": tails}, f"images/s {rounded(speed)}, p99 s {rounded(tail)}")
    for name, above, below in (
        ("one a request over bulk", "ours", "bulk"),
        ("64 a request over bulk", "ours, 64", "bulk"),
        ("one a request over FastAPI and timm fp32", "ours", "plain"),
    ):
        ratios = [speed[above] / speed[below] for speed in speeds]
        report.say(name, ratios, f"images/s, {name}: {spread(ratios)}")
    return statistics.median(speed["ours"] for speed in speeds)


def latency(report: Report, name: str, side: Side, images: Path, rate: float, chosen: argparse.Namespace) -> None:
    """Measure p99 / p50 at a rate, with requests at random times."""
    ratios, halves = [], []
    for _ in range(chosen.turns):
        with side.awake():
            found = load(side.url, images, side.form, requests=chosen.requests, rate=rate)
        ratios.append(found["p99"] / found["p50"])
        halves.append(1000 * found["p50"])
    report.say(
        f"p99/p50, {name}",
        {"ratios": ratios, "p50_ms": halves, "rate": rate},
        f"{name} at {rate:.1f} requests/s: p99/p50 {spread(ratios)}, p50 {spread(halves, '.1f')} ms",
    )


# ---------------------------------------------------------------- search and start


def search(report: Report, items: int, turns: int, folder: Path) -> None:
    """Measure a search by vector over REST and in the store, one at a time, on the same store and queries."""
    place, bodies = str(folder / "search"), folder / "bodies"
    clusters = Clusters(items, DIM)
    queries = clusters.queries(QUERIES)
    with open_store(place) as store:
        collection = store.create("photos", CollectionSpec(DIM))
        for rows in clusters.chunks():
            collection.upsert([Item(*one) for one in zip(rows.ids(), rows.vectors, rows.metadata(), strict=True)])
        collection.compact()
    bodies.mkdir()
    for i, query in enumerate(queries):
        vector = base64.b64encode(query.astype("<f4").tobytes()).decode()
        (bodies / f"{i:04}.json").write_text(json.dumps({"vector": vector, "k": 10}))
    server = ours(TINY, place, free_port())
    try:
        server.wait()
        url = server.url.replace("/embed", "/collections/photos/search")
        over, bare = [], []
        with open_store(place, read_only=True) as store:
            collection = store.get("photos")
            for _ in range(turns):
                found = load(url, bodies, "body", requests=QUERIES, concurrency=1)
                times = [seconds(lambda query=query: collection.search(query, 10)) for query in queries]
                bare.append(1000 * statistics.median(times))
                over.append(1000 * found["p50"] - bare[-1])
            index = collection.info().index
    finally:
        server.end()
    report.say(
        "search",
        {"over_ms": over, "bare_ms": bare, "index": index},
        f"search among {items:,} ({index}): REST adds {spread(over)} ms to p50 {spread(bare)} ms",
    )


def ready(report: Report, model: str, turns: int, folder: Path) -> None:
    """Measure the time from the start of the process, with the page, on an empty store."""
    ratios, times = [], []
    for turn in range(turns):
        command = [sys.executable, str(HERE / "serving_sides.py"), "ready", model]
        bare = seconds(lambda command=command: subprocess.run(command, check=True))
        begun = time.perf_counter()
        server = ours(model, str(folder / f"empty{turn}"), free_port(), page=True)
        try:
            server.wait()
            times.append(time.perf_counter() - begun)
        finally:
            server.end()
        ratios.append(times[-1] / bare)
    report.say("ready", {"ratios": ratios, "seconds": times}, f"ready in {spread(times)} s, over bare {spread(ratios)}")


# ---------------------------------------------------------------- images


def make_images(folder: Path, count: int = 64) -> Path:
    """Write crops of 480 x 360 from scikit-image's photos."""
    from skimage import data

    folder.mkdir()
    draws = np.random.default_rng(0)
    photos = [
        Image.fromarray(getattr(data, name)()).resize((720, 540)) for name in ("astronaut", "coffee", "cat", "rocket")
    ]
    for i in range(count):
        left, top = int(draws.integers(0, 240)), int(draws.integers(0, 180))
        crop = photos[i % len(photos)].crop((left, top, left + 480, top + 360))
        crop.save(folder / f"{i:02}.jpg", quality=90)
    return folder


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


if __name__ == "__main__":
    main()
