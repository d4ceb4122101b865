"""The Gradio demo: its endpoints return what the server returns, and its page works in a browser."""

import base64
import io
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from labeling import fit_probe
from PIL import Image
from waiting import free_port, until_served

from nnclr_hub.store import open_store
from nnclr_hub.store.items import Item
from nnclr_hub.workbench import Encoders, NewImage, SearchQuery, Workbench


@pytest.fixture(scope="module")
def served(model, filled, serve) -> Iterator:
    with open_store(str(filled)) as opened:
        fit_probe(Workbench(Encoders(str(model), device="cpu"), opened), "things", "photos", "label")
    yield from serve(model, filled)


@pytest.fixture(scope="module")
def demo(served, tmp_path_factory) -> Iterator[str]:
    runs = tmp_path_factory.mktemp("runs")
    write_neighbors(runs / "first")
    with run(served, runs) as url:
        yield url


@contextmanager
def run(server, runs: Path) -> Iterator[str]:
    """Run the demo of a server in its own process, and provide its address."""
    port = free_port()
    call = f"serve({server.url!r}, {port}, '127.0.0.1', Path({str(runs)!r}))"
    start = f"from pathlib import Path; from app.gradio_demo import serve; {call}"
    running = subprocess.Popen([sys.executable, "-c", start])
    try:
        until_served(f"http://127.0.0.1:{port}/config", running)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(120)


def write_neighbors(run: Path, checkpoints: int = 2) -> None:
    """Write what a training run records of its support set."""
    file = io.BytesIO()
    Image.new("RGB", (56, 40), "teal").save(file, "JPEG")
    line = {"step": 10, "queries": [3], "neighbors": [[5, -1]], "similarity": [[0.5, -2.0]]}
    line["thumbnails"] = dict.fromkeys(("3", "5"), base64.b64encode(file.getvalue()).decode())
    run.mkdir()
    (run / "neighbors.jsonl").write_text(
        "".join(json.dumps(line | {"epoch": epoch}) + "\n" for epoch in (1, 4)[:checkpoints])
    )


@pytest.fixture(scope="module")
def client(demo):
    from gradio_client import Client

    return Client(demo, verbose=False)


def test_each_event_is_an_endpoint_that_answers_as_the_library_does(client, served, photos):
    from gradio_client import handle_file

    path = sorted((photos / "cat").iterdir())[4]
    bench = served.bench
    found = client.predict(handle_file(str(path)), api_name="/search")
    expected = bench.search("photos", SearchQuery([path], k=24))
    assert [one["caption"] for one in found] == [f"{one.metadata['label']} {one.score:.2f}" for one in expected]

    overlay, _ = client.predict(handle_file(str(path)), api_name="/attention")
    assert overlay.endswith((".png", ".webp"))

    answer = client.predict(handle_file(str(path)), api_name="/predict")
    [item] = bench.collection("photos").scroll(where={"must": [{"key": "path", "match": f"cat/{path.name}"}]}).items
    [labeling] = bench.predict("things", collection="photos", ids=[item.id])
    assert answer["confidences"][0]["label"] == labeling.top[0][0]
    assert answer["confidences"][0]["confidence"] == pytest.approx(labeling.top[0][1], abs=1e-3)


def test_an_error_of_the_server_is_its_sentence(client, tmp_path):
    from gradio_client import handle_file
    from gradio_client.exceptions import AppError

    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(AppError, match="image"):
        client.predict(handle_file(str(tmp_path / "bad.png")), api_name="/search")


def test_server_files_cannot_be_read(client, demo):
    import httpx

    for path in ("/etc/passwd", "/proc/self/environ"):
        assert httpx.get(f"{demo}/gradio_api/file={path}", timeout=60).status_code in (403, 404)
    data = [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}]
    answer = httpx.post(f"{demo}/gradio_api/call/search", json={"data": data}, timeout=60).json()
    events = (
        httpx.get(f"{demo}/gradio_api/call/search/{answer['event_id']}", timeout=60).text
        if "event_id" in answer
        else "error"
    )
    assert "error" in events
    assert "root:" not in json.dumps(events)


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_a_body_after_an_upgrade_is_not_executed_as_a_request(demo, offer):
    """In its own packet, as a stock server would execute it."""
    host, _, port = demo.removeprefix("http://").partition(":")
    inner = b"GET /config HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"Host: x\r\nConnection: Upgrade\r\nUpgrade: {offer}\r\nContent-Length: {len(inner)}\r\n\r\n"
    last = b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST /none HTTP/1.1\r\n{head}".encode())
        time.sleep(0.2)
        connection.sendall(inner + last)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert re.findall(rb"HTTP/1\.1 (\d)", answer) == [b"4", b"4"]


@pytest.mark.parametrize("checkpoints", [1, 2])
def test_the_neighbors_of_a_run_are_shown_at_each_checkpoint(served, tmp_path, checkpoints):
    from app.gradio_demo import Demo
    from nnclr_hub import Client

    write_neighbors(tmp_path / "run", checkpoints)
    with (tmp_path / "run/neighbors.jsonl").open("a") as file:
        file.write('{"step": 20, "que')  # the run is writing it
    with Client(served.url) as client:
        _, gallery = Demo(client, tmp_path).evolution()
    shown = [(image["caption"], image["image"]["path"]) for image in gallery.value]
    assert [epoch for epoch, _ in shown] == ["epoch 1", "", "", "epoch 4", "", ""][: 3 * checkpoints]
    for (_, path), size in zip(shown, [(56, 40), (56, 40), (56, 56)], strict=False):
        with Image.open(path) as image:
            assert image.size == size


def test_a_probe_is_fitted_when_the_encoder_has_none(served, monkeypatch):
    from app.gradio_demo import Demo
    from nnclr_hub import Client

    with Client(served.url) as client:
        monkeypatch.setattr(client.probes, "list", list)
        demo = Demo(client)
        assert demo.predict(demo.first())
        client.probes.delete("demo")


PANEL = "[...document.querySelectorAll('[role=tabpanel]')].find(one => one.checkVisibility())"
WHY = "cannot be shown"
ACTS = ("Neighbors", "Attention", "How NNCLR learns", "Probe")


@pytest.mark.browser
def test_an_act_that_cannot_be_shown_says_why_and_leaves_the_others(model, image_files, serve, chromium, tmp_path):
    """While a store grows from nothing, under one running demo."""

    def shown(page, url: str) -> dict[str, int]:
        """Return the number of images of each act; -1 for a sentence in its place."""
        page.goto(url)
        found = {}
        for name in ACTS:
            page.get_by_role("tab", name=name).click()
            page.wait_for_function(f"() => {PANEL}?.querySelector('img') ?? {PANEL}?.innerText.includes({WHY!r})")
            page.wait_for_timeout(500)
            found[name] = page.evaluate(f"{PANEL}.querySelectorAll('img').length") or -1
        return found

    serving = serve(model, tmp_path / "store")
    server = next(serving)
    bench = server.bench
    with run(server, tmp_path / "runs") as url:
        page = chromium.new_page()
        nothing = dict.fromkeys(ACTS, -1)
        assert shown(page, url) == nothing  # no collection
        bench.create_collection("photos")
        assert shown(page, url) == nothing  # an empty one
        bench.collection("photos").upsert([Item("bare", np.ones(bench.collection("photos").spec.dim, np.float32))])
        assert shown(page, url) == nothing  # without an image
        bench.collection("photos").delete(["bare"])
        bench.add_images("photos", [NewImage("one", image_files[0].read_bytes(), {"label": "cat"})])
        one = shown(page, url)
        assert (one["Neighbors"], one["How NNCLR learns"], one["Probe"]) == (1, -1, -1)
        assert one["Attention"] >= 2
        page.close()
    serving.close()


@pytest.mark.browser
def test_each_act_opens_with_an_answer(demo, chromium, served):
    page = chromium.new_page()
    page.set_default_timeout(60_000)
    page.goto(demo)
    captions = "[...document.querySelectorAll('.caption-label')].map(one => one.innerText)"
    page.wait_for_function(f"() => {captions}.length === 24")
    before = page.evaluate(captions)
    page.locator("button.thumbnail-item, .grid-container button").nth(2).click()
    page.wait_for_function(f"before => {captions}[0] !== before[0]", arg=before)
    page.set_viewport_size({"width": 390, "height": 844})
    cut = (
        "[...document.querySelectorAll('.thumbnail-lg')].filter(one => one.getBoundingClientRect().right > innerWidth)"
    )
    page.wait_for_function(f"() => {cut}.length === 0")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_role("tab", name="Attention").click()
    maps = "[...document.querySelectorAll('.grid-container')].filter(one => one.checkVisibility())[0]?.innerHTML"
    page.wait_for_function(f"() => ({maps} ?? '').split('<img').length === 7")  # six, before anything is clicked
    before = page.evaluate(maps)
    image = page.locator("[data-testid=image] img:visible").first
    image.wait_for()
    box = image.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function(f"before => {maps} !== before", arg=before)
    page.get_by_role("tab", name="How NNCLR learns").click()
    page.wait_for_selector(".caption-label:has-text('its positive')")
    page.wait_for_selector(".caption-label:has-text('epoch 4')")
    page.get_by_role("tab", name="Probe").click()
    page.wait_for_selector("[data-testid='label-output-value']")
    page.close()


def test_a_clicked_part_is_looked_for_in_six_other_images(served, monkeypatch):
    from app.gradio_demo import Demo
    from nnclr_hub import Client, Point

    with Client(served.url) as client:
        demo = Demo(client)
        image = demo.first()
        attention, targets = client.attention, []

        def recorded(image, query, target=None, **options):
            targets.extend(target or [])
            return attention(image, query, target, **options)

        monkeypatch.setattr(client, "attention", recorded)
        _, maps = demo.attention(image, Point(3, 5))
        assert len(maps) == len(set(targets)) == 6
        id = client.collection("photos").scroll(limit=1).items[0].id
        assert client.collection("photos").thumbnail(id) not in targets
