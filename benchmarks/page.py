"""The page compared with REST: the same searches in both, and the effect of a busy page on REST.

    python benchmarks/page.py                       # the starter, and scikit-image's photos cut into crops
    python benchmarks/page.py --json figures.json

One server and one Chromium take turns. Sections:

    search    a click on a result until its neighbors appear, minus the same search over REST       at most 300 ms
    parallel  an action of the page, while programs search over REST without a pause
    load      REST's p99 while 50 actions of the page are processed, over its p99 alone               below 2

An action is a search by an item of a new visitor, queued as a browser's action is. When all 50 have their results, the
next 50 start. REST is measured with a search by an image and a search by a vector, which costs next to nothing. The
same visitors also use a second server with a separate page: its effect on REST is the machine's, not the page's.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from serving_processes import free_port, ours
from store_report import Report

from nnclr_hub.cli.programs import load_program
from nnclr_hub.hub.registry import default_model
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.workbench import Encoders, Workbench

NAME = "photos"
SEARCH = f"/api/v1/collections/{NAME}/search"
ACTIONS = 50
START = "/ui/gradio_api/call/start"
K = 24
ROUNDS = 4
LIMITS = httpx.Limits(max_connections=ACTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=default_model())
    parser.add_argument("--clicks", type=int, default=30)
    parser.add_argument("--requests", type=int, default=2000, help="of REST, of each kind in each state")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--visit", nargs=2, metavar=("URL", "ID"), help="only send the page's actions there, for ever")
    parser.add_argument("--ask", nargs=2, metavar=("URL", "ID"), help="only search there over REST, for ever")
    chosen = parser.parse_args()
    if chosen.visit:
        visit(*chosen.visit)
        return
    if chosen.ask:
        ask(*chosen.ask)
        return
    report = Report(chosen.json)
    report.begin(model=chosen.model, clicks=chosen.clicks, requests=chosen.requests)
    with tempfile.TemporaryDirectory(prefix="nnclr_benchmark_") as folder:
        images = load_program("app", "gallery").photo_crops(Path(folder) / "photos")
        with open_store(f"{folder}/store") as store:
            Workbench(Encoders(chosen.model, backend="auto"), store).index_folder(NAME, images)
            [item] = store.get(NAME).scroll(limit=1).items
        shutil.copytree(f"{folder}/store", f"{folder}/other store")
        with serving(chosen.model, f"{folder}/store") as url:
            search(report, url, chosen.clicks)
            parallel(report, url, item.id, chosen.clicks)
            with serving(chosen.model, f"{folder}/other store") as other:
                load(report, url, other, item, next(images.rglob("*.jpg")).read_bytes(), chosen.requests)


@contextmanager
def serving(model: str, store: str) -> Iterator[str]:
    """Yield the address of a server whose page is ready."""
    port = free_port()
    side, url = ours(model, store, port, page=True), f"http://127.0.0.1:{port}"
    try:
        side.wait()
        httpx.get(f"{url}/ui/", timeout=120).raise_for_status()
        yield url
    finally:
        side.end()


def search(report: Report, url: str, clicks: int) -> None:
    """Click on results, each followed by the same search over REST."""
    from playwright.sync_api import sync_playwright

    page_s, rest_s = [], []
    with sync_playwright() as playwright, httpx.Client(base_url=url, timeout=60) as client:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{url}/ui/")
        page.wait_for_selector("#tiles .image", timeout=120_000)
        for turn in range(clicks + 3):
            seconds, id = page.evaluate(CLICK, turn)
            begun = time.perf_counter()
            client.post(SEARCH, json={"id": id, "k": K}).raise_for_status()
            if turn >= 3:  # the first ones warm both
                page_s.append(seconds)
                rest_s.append(time.perf_counter() - begun)
        browser.close()
    page_ms, rest_ms = (1000 * statistics.median(one) for one in (page_s, rest_s))
    report.say("page_ms", page_ms, f"page: {page_ms:.0f} ms from a click to its neighbors, median of {clicks}")
    report.say("rest_ms", rest_ms, f"REST: {rest_ms:.0f} ms for the same searches")
    report.say("page_less_rest_ms", page_ms - rest_ms, f"the page takes {page_ms - rest_ms:.0f} ms more; at most 300")


CLICK = """turn => new Promise(done => {
  const tiles = [...document.querySelectorAll('#tiles .image')], chosen = tiles[(7 * turn) % tiles.length];
  const id = chosen.dataset.id, list = document.querySelector('#tiles .tiles'), begun = performance.now();
  new MutationObserver((_, observer) => {
    if (list.querySelector(`[data-id="${id}"]`)) return;
    observer.disconnect();
    requestAnimationFrame(() => done([(performance.now() - begun) / 1000, id]));
  }).observe(list, {childList: true});
  chosen.click();
})"""


def parallel(report: Report, url: str, id: str, actions: int) -> None:
    """Run one visitor's actions while programs search."""
    for programs in (0, 1, 8):
        with others("--ask", url, id, programs), httpx.Client(base_url=f"{url}{START}", timeout=60) as client:
            taken = []
            for _ in range(actions):
                begun = time.perf_counter()
                event = client.post("", json=action(id)).raise_for_status().json()["event_id"]
                client.get(f"/{event}").raise_for_status()
                taken.append(time.perf_counter() - begun)
        ms = 1000 * statistics.median(taken)
        report.say(f"action_beside_{programs}_ms", ms, f"an action during {programs} programs: {ms:.0f} ms, median")


def load(report: Report, url: str, other: str, item: Item, image: bytes, requests: int) -> None:
    """Measure REST while the page is idle, and during bursts of 50 actions there and at another server."""
    bodies = {"image": {"image": base64.b64encode(image).decode()}, "vector": {"vector": item.vector.tolist()}}
    parallel: dict[str, dict[str, list[float]]] = {by: {"own": [], "busy": [], "other": []} for by in bodies}
    for _ in range(ROUNDS):  # in turn, for what else the machine does changes
        for state, visited in (("own", None), ("busy", url), ("other", other)):
            with others("--visit", visited, item.id):
                for by, body in bodies.items():
                    parallel[by][state] += times(url, body, requests // ROUNDS)
    for by, seconds in parallel.items():
        own, busy, elsewhere = (p99_ms(seconds[state]) for state in ("own", "busy", "other"))
        report.say(f"{by}_p99_ms", own, f"REST by a {by}: p99 {own:.1f} ms of {requests}, the page at rest")
        report.say(f"{by}_p99_busy_ms", busy, f"REST by a {by}: p99 {busy:.1f} ms during {ACTIONS} actions")
        report.say(f"{by}_p99_other_ms", elsewhere, f"REST by a {by}: p99 {elsewhere:.1f} ms, these at another server")
        report.say(f"{by}_ratio", busy / own, f"{busy / own:.2f} times its own; below 2")
        report.say(f"{by}_floor", elsewhere / own, f"{elsewhere / own:.2f} times its own with the page elsewhere")


@contextmanager
def others(do: str, url: str | None, id: str, count: int = 1) -> Iterator[None]:
    """So many processes that do what the option says for ever, or none."""
    command = [sys.executable, __file__, do, str(url), id]
    processes = [subprocess.Popen(command) for _ in range(count)] if url else []
    try:
        time.sleep(3 if processes else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def times(url: str, body: dict[str, Any], requests: int) -> list[float]:
    """Return the seconds of each request, one after the other."""
    taken = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(requests):
            begun = time.perf_counter()
            client.post(SEARCH, json={**body, "k": K}).raise_for_status()
            taken.append(time.perf_counter() - begun)
    return taken


def p99_ms(seconds: list[float]) -> float:
    return 1000 * statistics.quantiles(seconds, n=100)[98]


def visit(url: str, id: str) -> None:
    """Simulate 50 visitors who search at once, again and again, until the process is killed."""
    os.nice(10)

    async def forever() -> None:
        async with httpx.AsyncClient(base_url=f"{url}{START}", timeout=120, limits=LIMITS) as client:

            async def act() -> None:
                event = (await client.post("", json=action(id))).raise_for_status().json()["event_id"]
                (await client.get(f"/{event}")).raise_for_status()

            while True:
                await asyncio.gather(*(act() for _ in range(ACTIONS)))

    asyncio.run(forever())


def ask(url: str, id: str) -> None:
    """Search over REST, one request after the other, until the process is killed."""
    with httpx.Client(base_url=url, timeout=60) as client:
        while True:
            client.post(SEARCH, json={"id": id, "k": K}).raise_for_status()


def action(id: str) -> dict[str, Any]:
    """Return the request of a browser that opens the link of a search by an item."""
    return {"data": [f"collection={NAME}&more={id}", None, None]}


if __name__ == "__main__":
    main()
