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
from pathlib import Path

import pytest
from labeling import fit_probe
from PIL import Image
from waiting import free_port, until_served

from nnclr_hub.store import open_store
from nnclr_hub.workbench import Encoders, SearchQuery, Workbench


@pytest.fixture(scope="module")
def served(model, filled, serve) -> Iterator:
    with open_store(str(filled)) as opened:
        fit_probe(Workbench(Encoders(str(model), device="cpu"), opened), "things", "photos", "label")
    yield from serve(model, filled)


@pytest.fixture(scope="module")
def demo(served, tmp_path_factory) -> Iterator[str]:
    """Run the demo in its own process, and return its address."""
    port = free_port()
    runs = tmp_path_factory.mktemp("runs")
    write_neighbors(runs / "first")
    call = f"serve({served.url!r}, {port}, '127.0.0.1', Path({str(runs)!r}))"
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
    expected = bench.search("photos", SearchQuery([path], k=23))
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
    with Client(served.url) as client:
        demo = Demo(client, "photos", tmp_path)
        assert demo.neighbors is not None
        shown = demo.evolution(demo.neighbors)
    assert [epoch for _, epoch in shown] == ["epoch 1", "", "", "epoch 4", "", ""][: 3 * checkpoints]
    assert [image.size for image, _ in shown[:3]] == [(56, 40), (56, 40), (56, 56)]


def test_the_demo_fits_a_probe_and_opens_without_one_that_cannot_be_fitted(served, monkeypatch):
    from app.gradio_demo import Demo, build
    from nnclr_hub import Client
    from nnclr_hub.errors import Overloaded

    def refuse(*_: object, **__: object) -> None:
        raise Overloaded("busy")

    with Client(served.url) as client:
        monkeypatch.setattr(client.probes, "list", list)
        fitted = Demo(client, "photos")
        assert fitted.probe == "demo"
        assert fitted.predict(fitted.first)
        client.probes.delete("demo")
        monkeypatch.setattr(client.probes, "fit", refuse)
        config = build(Demo(client, "photos")).get_config_file()
    assert "Probe" not in [one["props"].get("label") for one in config["components"] if one["type"] == "tabitem"]


@pytest.mark.browser
def test_each_act_opens_with_an_answer(demo, chromium, served):
    page = chromium.new_page()
    page.set_default_timeout(60_000)
    page.goto(demo)
    captions = "[...document.querySelectorAll('.caption-label')].map(one => one.innerText)"
    page.wait_for_function(f"() => {captions}.some(text => text.endsWith(' 1.00'))")
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
        demo = Demo(client, "photos")
        own, shown = demo.collection.thumbnail(demo.items[0].id), []
        image = demo.image
        monkeypatch.setattr(demo, "image", lambda id: shown.append(id) or image(id))
        _, maps = demo.attention(demo.first, Point(3, 5))
        assert len(maps) == len(set(shown)) == 6
        assert own not in map(demo.collection.thumbnail, shown)
        assert demo.items[0].id not in shown
