"""The page against REST: the same searches by both, and what a busy page costs REST.

    python benchmarks/page.py                       # the starter, and scikit-image's photos cut into crops
    python benchmarks/page.py --json figures.json

One server, one Chromium, turn by turn. Sections:

    search    a click on a hit, until its neighbours stand there, less the same search over REST     at most 300 ms
    load      REST's p99 while 50 actions of the page are in work, over its p99 alone                 below 2

An action is a search by an item of a visitor who came just now, queued as a browser's is; when all 50 are answered, the
next 50 come. What is measured over REST is a search by a picture, and one by a vector, which is next to nothing.
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
K = 24
LIMITS = httpx.Limits(max_connections=ACTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=default_model())
    parser.add_argument("--clicks", type=int, default=30)
    parser.add_argument("--requests", type=int, default=400, help="of REST, in each state of the page")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--visit", nargs=2, metavar=("URL", "ID"), help="only send the page's actions there, for ever")
    chosen = parser.parse_args()
    if chosen.visit:
        visit(*chosen.visit)
        return
    report = Report(chosen.json)
    report.begin(model=chosen.model, clicks=chosen.clicks, requests=chosen.requests)
    with tempfile.TemporaryDirectory(prefix="nnclr_page_") as folder:
        pictures = load_program("app", "gallery").offline_gallery(Path(folder) / "photos")
        with open_store(f"{folder}/store") as store:
            Workbench(Encoders(chosen.model, backend="auto"), store).index_folder(NAME, pictures)
            [item] = store.get(NAME).scroll(limit=1).items
        port = free_port()
        side, url = ours(chosen.model, f"{folder}/store", port, page=True), f"http://127.0.0.1:{port}"
        try:
            side.wait()
            httpx.get(f"{url}/ui/", timeout=120).raise_for_status()
            search(report, url, chosen.clicks)
            load(report, url, item, next(pictures.rglob("*.jpg")).read_bytes(), chosen.requests)
        finally:
            side.end()


def search(report: Report, url: str, clicks: int) -> None:
    """Clicks on hits, each followed by the same search over REST."""
    from playwright.sync_api import sync_playwright

    page_s, rest_s = [], []
    with sync_playwright() as playwright, httpx.Client(base_url=url, timeout=60) as client:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{url}/ui/")
        page.wait_for_selector("#tiles .picture", timeout=120_000)
        for turn in range(clicks + 3):
            seconds, id = page.evaluate(CLICK, turn)
            begun = time.perf_counter()
            client.post(SEARCH, json={"id": id, "k": K}).raise_for_status()
            if turn >= 3:  # the first ones warm both
                page_s.append(seconds)
                rest_s.append(time.perf_counter() - begun)
        browser.close()
    page_ms, rest_ms = (1000 * statistics.median(one) for one in (page_s, rest_s))
    report.say("page_ms", page_ms, f"page: {page_ms:.0f} ms from a click to its neighbours, median of {clicks}")
    report.say("rest_ms", rest_ms, f"REST: {rest_ms:.0f} ms for the same searches")
    report.say("page_less_rest_ms", page_ms - rest_ms, f"the page takes {page_ms - rest_ms:.0f} ms more; at most 300")


CLICK = """turn => new Promise(done => {
  const tiles = [...document.querySelectorAll('#tiles .picture')], chosen = tiles[(7 * turn) % tiles.length];
  const id = chosen.dataset.id, list = document.querySelector('#tiles .tiles'), begun = performance.now();
  new MutationObserver((_, observer) => {
    if (list.querySelector(`[data-id="${id}"]`)) return;
    observer.disconnect();
    requestAnimationFrame(() => done([(performance.now() - begun) / 1000, id]));
  }).observe(list, {childList: true});
  chosen.click();
})"""


def load(report: Report, url: str, item: Item, picture: bytes, requests: int) -> None:
    """REST with the page at rest, and while bursts of 50 actions are in work, which a process of their own sends."""
    bodies = {"picture": {"image": base64.b64encode(picture).decode()}, "vector": {"vector": item.vector.tolist()}}
    alone = {by: p99_ms(url, body, requests) for by, body in bodies.items()}
    visitors = subprocess.Popen([sys.executable, __file__, "--visit", url, item.id])
    try:
        time.sleep(3)
        beside = {by: p99_ms(url, body, requests) for by, body in bodies.items()}
    finally:
        visitors.kill()
        visitors.wait()
    for by, own in alone.items():
        ratio = beside[by] / own
        report.say(f"{by}_p99_ms", own, f"REST by a {by}: p99 {own:.1f} ms of {requests}, the page at rest")
        report.say(f"{by}_p99_busy_ms", beside[by], f"REST by a {by}: p99 {beside[by]:.1f} ms beside {ACTIONS} actions")
        report.say(f"{by}_ratio", ratio, f"{ratio:.2f} times its own; below 2")


def p99_ms(url: str, body: dict[str, Any], requests: int) -> float:
    times = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(requests):
            begun = time.perf_counter()
            client.post(SEARCH, json={**body, "k": K}).raise_for_status()
            times.append(time.perf_counter() - begun)
    return 1000 * statistics.quantiles(times, n=100)[98]


def visit(url: str, id: str) -> None:
    """50 visitors who search at once, and again when all are answered, until the process is ended.

    They give way to the server, as visitors do who are elsewhere.
    """
    os.nice(10)

    async def forever() -> None:
        body: dict[str, Any] = {"data": [f"collection={NAME}&more={id}", None]}
        async with httpx.AsyncClient(base_url=f"{url}/ui/gradio_api/call/start", timeout=120, limits=LIMITS) as client:

            async def act() -> None:
                event = (await client.post("", json=body)).raise_for_status().json()["event_id"]
                (await client.get(f"/{event}")).raise_for_status()

            while True:
                await asyncio.gather(*(act() for _ in range(ACTIONS)))

    asyncio.run(forever())


if __name__ == "__main__":
    main()
