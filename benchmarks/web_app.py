"""The web app compared with REST, its effect on REST, and a collection of 100,000 images in a browser.

    python benchmarks/web_app.py                        # the small starter, and scikit-image's photos cut into crops
    python benchmarks/web_app.py --json figures.json

Sections:

    click    a click on an image until its neighbors appear, next to the same search over REST      below 150 ms
    load     REST's p99 while 50 people use the app, over its p99 alone                             below 1.3
    large    100,000 images: time to the first image and to all items, frames of grid and map       60 and 30 per second

One of the 50 people clicks every 5 s on average: a search for 60 matches, and one request for the thumbnails of the
first 24 matches that the browser has not shown before. They compute only while a core is idle, because real people use
other machines. REST is measured by one program that searches without a pause.
The browser draws by software, so the frames of a computer with a graphics card are faster.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import numpy as np
from PIL import Image
from serving_processes import free_port, ours
from store_report import Report

from nnclr_hub.cli.programs import load_program
from nnclr_hub.hub.registry import default_model
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench import Encoders, Workbench
from nnclr_hub.workbench.inspections import KeptInspection, keep_inspection, state_of

NAME, LARGE = "photos", "large"
SEARCH = f"/api/v1/collections/{NAME}/search"
PEOPLE = 50
THINK_S = 5.0  # between two clicks of a person, on average
K, SHOWN = 60, 24  # matches that the app requests first, and shows on one screen
ROUNDS = 4
SETTLE_S = 3.0
FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=default_model())
    parser.add_argument("--clicks", type=int, default=30)
    parser.add_argument("--requests", type=int, default=2000, help="of REST, of each kind in each state")
    parser.add_argument("--items", type=int, default=100_000, help="of the large collection")
    parser.add_argument("--only", choices=("click", "load", "large"), help="one section")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--visit", nargs=2, metavar=("URL", "IDS"), help="only use the app there, for ever")
    chosen = parser.parse_args()
    if chosen.visit:
        visit(chosen.visit[0], json.loads(chosen.visit[1]))
        return
    report = Report(chosen.json)
    report.begin(model=chosen.model, clicks=chosen.clicks, requests=chosen.requests, items=chosen.items)
    with tempfile.TemporaryDirectory(prefix="nnclr_benchmark_") as folder:
        store = f"{folder}/store"
        images = load_program("app", "gallery").photo_crops(Path(folder) / "photos")
        with open_store(store) as opened:
            Workbench(Encoders(chosen.model, backend="auto"), opened).index_folder(NAME, images)
            items = opened.get(NAME).scroll(limit=100).items
            if chosen.only in (None, "large"):
                fill(opened, chosen.items)
        with serving(chosen.model, store) as url:
            if chosen.only in (None, "click"):
                click(report, url, chosen.clicks)
            if chosen.only in (None, "load"):
                load(report, url, items, next(images.rglob("*.jpg")).read_bytes(), chosen.requests)
            if chosen.only in (None, "large"):
                large(report, url)


@contextmanager
def serving(model: str, store: str) -> Iterator[str]:
    """Yield the address of a server with the app."""
    port = free_port()
    side = ours(model, store, port, page=True)
    try:
        side.wait()
        yield f"http://127.0.0.1:{port}"
    finally:
        side.end()


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield opened.new_page(viewport={"width": 1440, "height": 900})
        opened.close()


def click(report: Report, url: str, clicks: int) -> None:
    """Click on images, each followed by the same search over REST."""
    app_s, rest_s = [], []
    with browser() as page, httpx.Client(base_url=url, timeout=60) as client:
        page.goto(f"{url}/#/explore/{NAME}")
        page.wait_for_selector(".tile img")
        for turn in range(clicks + 3):
            seconds, id = page.evaluate(CLICK, turn)
            begun = time.perf_counter()
            client.post(SEARCH, json={"positive": [{"id": id}], "k": K}).raise_for_status()
            if turn >= 3:  # the first ones warm both
                app_s.append(seconds)
                rest_s.append(time.perf_counter() - begun)
    app_ms, rest_ms = (1000 * statistics.median(one) for one in (app_s, rest_s))
    report.say("click_ms", app_ms, f"app: {app_ms:.0f} ms from a click to its neighbors, median of {clicks}; below 150")
    report.say("rest_ms", rest_ms, f"REST: {rest_ms:.0f} ms for the same searches")


CLICK = """turn => new Promise(done => {
  const tiles = [...document.querySelectorAll('.tile')], chosen = tiles[(7 * turn) % Math.min(tiles.length, 20)];
  const id = chosen.dataset.id, begun = performance.now();
  const shown = () => document.querySelector('.tile.asked .score') || document.querySelector('.tile .score');
  const before = shown()?.textContent, first = document.querySelector(".tile[aria-posinset='1']");
  const wait = () => {
    const now = document.querySelector(".tile[aria-posinset='1']");
    const other = shown() && now && (now !== first || shown().textContent !== before);
    if (other && !document.querySelector('image-grid.waiting')) return done([(performance.now() - begun) / 1000, id]);
    if (performance.now() - begun > 3000) return done([3, id]);
    requestAnimationFrame(wait);
  };
  chosen.click();
  requestAnimationFrame(wait);
})"""


def load(report: Report, url: str, items: list[Item], image: bytes, requests: int) -> None:
    """Measure REST while nobody uses the app, and while 50 people do."""
    bodies = {
        "image": {"image": base64.b64encode(image).decode()},
        "vector": {"vector": items[0].vector.tolist()},
    }
    seconds: dict[str, dict[str, list[float]]] = {by: {"alone": [], "used": []} for by in bodies}
    clicks: list[float] = []  # of all people per second, in each round
    for _ in range(ROUNDS):  # in turn, for what else the machine does changes
        for state in ("alone", "used"):
            with people(url, [item.id for item in items], clicks) if state == "used" else nobody():
                for by, body in bodies.items():
                    seconds[by][state] += times(url, body, requests // ROUNDS)
    rate = statistics.mean(clicks)
    report.say("clicks_per_s", rate, f"{PEOPLE} people clicked {rate:.1f} times per second")
    for by, own in seconds.items():
        alone, used = (1000 * statistics.quantiles(own[state], n=100)[98] for state in ("alone", "used"))
        report.say(f"{by}_p99_ms", alone, f"REST by a {by}: p99 {alone:.1f} ms of {requests}, nobody uses the app")
        report.say(f"{by}_p99_used_ms", used, f"REST by a {by}: p99 {used:.1f} ms while {PEOPLE} people use the app")
        report.say(f"{by}_ratio", used / alone, f"{used / alone:.2f} times its own; below 1.3")


@contextmanager
def nobody() -> Iterator[None]:
    """Wait as long as for people."""
    time.sleep(SETTLE_S)
    yield


@contextmanager
def people(url: str, ids: list[str], clicks: list[float]) -> Iterator[None]:
    """Run a process of 50 people, and add their clicks per second."""
    process = subprocess.Popen([sys.executable, __file__, "--visit", url, json.dumps(ids)], stdout=subprocess.PIPE)
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        process.terminate()
        clicks.append(float(process.communicate()[0] or "nan"))


def times(url: str, body: dict[str, Any], requests: int) -> list[float]:
    """Return the seconds of each request, one after the other."""
    taken = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(requests):
            begun = time.perf_counter()
            client.post(SEARCH, json={**body, "k": SHOWN}).raise_for_status()
            taken.append(time.perf_counter() - begun)
    return taken


def visit(url: str, ids: list[str]) -> None:
    """Simulate the people until the process is terminated, then print their clicks per second."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    clicks: list[float] = []

    async def person(client: httpx.AsyncClient, seed: int) -> None:
        chance, seen = random.Random(seed), set[str]()
        while True:
            await asyncio.sleep(chance.expovariate(1 / THINK_S))
            json = {"positive": [{"id": chance.choice(ids)}], "negative": [], "k": K, "where": None, "offset": 0}
            found = (await client.post(SEARCH, json=json)).raise_for_status().json()["matches"]
            new = {one["id"] for one in found[:SHOWN]} - seen
            seen |= new
            if new:
                (await client.post(f"/api/v1/collections/{NAME}/thumbnails", json={"ids": [*new]})).raise_for_status()
            clicks.append(time.monotonic())

    async def until_terminated() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=PEOPLE)) as client:
            await asyncio.gather(*(person(client, seed) for seed in range(PEOPLE)))

    with suppress(asyncio.CancelledError):
        asyncio.run(until_terminated())
    print(len(clicks) / (clicks[-1] - clicks[0]) if len(clicks) > 1 else "nan")


# ---- a large collection


def fill(store: Any, count: int) -> None:
    """Make a collection of random vectors with small images, labels and a number, and a map of it."""
    random_numbers = np.random.default_rng(0)
    thumbnails = []
    for i in range(200):
        width, height = ((96, 64), (64, 96), (80, 80))[i % 3]
        file = io.BytesIO()
        Image.new("RGB", (width, height), tuple(random_numbers.integers(0, 255, 3))).save(file, "JPEG")
        thumbnails.append(file.getvalue())
    collection = store.create(LARGE, CollectionSpec(64, "cosine"))
    for start in range(0, count, 5000):
        vectors = random_numbers.standard_normal((5000, 64)).astype(np.float32)
        collection.upsert(
            [
                Item(f"{i:07d}", vector, {"label": f"kind {i % 40}", "size": i % 997}, thumbnails[i % 200])
                for i, vector in enumerate(vectors, start)
            ]
        )
    places = random_numbers.standard_normal((count, 2)).astype(np.float32)
    log, seq = state_of(collection)
    zeros, ids = np.zeros(count, np.int32), tuple(f"{i:07d}" for i in range(count))
    kept = KeptInspection(
        collection=LARGE,
        number=0,
        made=time.time(),
        seq=seq,
        log=log,
        ids=ids,
        coordinates=places,
        clusters=zeros,
        outlier_scores=zeros.astype(np.float32),
        labels=zeros - 1,
        predicted=zeros - 1,
        findings={},
    )
    keep_inspection(store.records, kept)


def large(report: Report, url: str) -> None:
    """Open the large collection, scroll its grid, and move its map."""
    with browser() as page:
        begun = time.perf_counter()
        page.goto(f"{url}/#/explore/{LARGE}")
        page.wait_for_selector(".tile img[src]")
        first = time.perf_counter() - begun
        report.say("first_image_s", first, f"first image after {first:.2f} s")
        page.wait_for_selector(".note:has-text('loaded so far')", state="hidden", timeout=300_000)
        page.wait_for_selector("item-map select option:nth-child(2)", state="attached", timeout=300_000)
        ready = time.perf_counter() - begun
        report.say("all_items_s", ready, f"all items, facets and the map after {ready:.1f} s")
        page.wait_for_timeout(2000)
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable")
        for name, script in (("grid", SCROLL), ("map", PAN)):
            before = script_seconds(metrics)
            frames = page.evaluate(script)
            script_ms = 1000 * (script_seconds(metrics) - before) / len(frames)
            median, slow = statistics.median(frames), sorted(frames)[int(0.95 * len(frames))]
            report.say(
                f"{name}_frame_ms", median, f"{name}: {median:.1f} ms per frame, median; 95% below {slow:.1f} ms"
            )
            report.say(
                f"{name}_script_ms", script_ms, f"{name}: {script_ms:.1f} ms of script, style and layout per frame"
            )
        for name, script in (("filter", FILTER), ("sort", SORT)):
            ms = page.evaluate(script)
            report.say(f"{name}_ms", ms, f"{name}: {ms:.0f} ms until the grid shows the result")
        heap = metrics.send("Runtime.getHeapUsage")["usedSize"] / 1e6
        report.say("heap_mb", heap, f"heap of the page: {heap:.0f} MB")


def script_seconds(session: Any) -> float:
    values = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return values["ScriptDuration"] + values["LayoutDuration"] + values["RecalcStyleDuration"]


FRAMES = """const frames = [];
  let last = performance.now();
  for (let i = 0; i < 120; i++) {
    step(i);
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames;"""
SCROLL = f"""async () => {{ const box = document.querySelector('.scroller');
  const step = () => {{ box.scrollTop += 400; }};
  {FRAMES} }}"""
PAN = f"""async () => {{
  const surface = document.querySelector('.surface'), box = surface.getBoundingClientRect();
  const at = (type, i) => surface.dispatchEvent(new PointerEvent(type, {{pointerId: 1, buttons: 1, bubbles: true,
    clientX: box.left + box.width / 2 + 3 * i, clientY: box.top + box.height / 2 + i}}));
  surface.setPointerCapture = () => {{}};
  at('pointerdown', 0);
  const step = i => at('pointermove', i % 60);
  {FRAMES} }}"""
AFTER = """const begun = performance.now(), shown = new Promise(done => new MutationObserver(() => done()).observe(
    document.querySelector('.sheet'), {childList: true}));
  act();
  await shown;
  await new Promise(requestAnimationFrame);
  return performance.now() - begun;"""
FILTER = f"async () => {{ const act = () => document.querySelector('.facet').click(); {AFTER} }}"
SORT = f"""async () => {{ const order = document.querySelector('select[aria-label=Order]');
  const act = () => {{ order.value = '-size'; order.dispatchEvent(new Event('change')); }}; {AFTER} }}"""


if __name__ == "__main__":
    main()
