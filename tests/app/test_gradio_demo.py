"""The Gradio demo: its endpoints return what the server returns, and its page works in a browser."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from labeling import fit_probe
from waiting import free_port, until_served

from nnclr_hub.store import open_store
from nnclr_hub.store.items import percent_text
from nnclr_hub.workbench import Encoders, SearchQuery, Workbench


@pytest.fixture(scope="module")
def served(model, photos, tmp_path_factory, serve) -> Iterator:
    store = tmp_path_factory.mktemp("gradio") / "store"
    with open_store(str(store)) as opened:
        bench = Workbench(Encoders(str(model), device="cpu"), opened)
        bench.index_folder("photos", photos)
        fit_probe(bench, "things", "photos", "label")
    yield from serve(model, store)


@pytest.fixture(scope="module")
def demo(served) -> Iterator[str]:
    """Run the demo in its own process, and return its address."""
    port = free_port()
    command = [sys.executable, "-m", "app.gradio_demo", "--url", served.url, "--port", str(port)]
    running = subprocess.Popen(command)
    try:
        until_served(f"http://127.0.0.1:{port}/config", running)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(120)


@pytest.fixture(scope="module")
def client(demo):
    from gradio_client import Client

    return Client(demo, verbose=False)


def test_each_event_is_an_endpoint_that_answers_as_the_library_does(client, served, photos):
    from gradio_client import handle_file

    path = sorted((photos / "cat").iterdir())[4]
    bench = served.bench
    found = client.predict(handle_file(str(path)), api_name="/search")
    expected = bench.search("photos", SearchQuery([path], k=24, with_percentile=True))
    captions = [[f"{m.score:.3f}", f"({percent_text(m.percentile)})", m.metadata["label"]] for m in expected]
    assert [one["caption"].split() for one in found] == captions

    near = client.predict(expected[0].id, api_name="/similar")
    assert [one["id"] for one in near] == [m.id for m in bench.search("photos", SearchQuery([expected[0].id], k=24))]

    overlay = client.predict(handle_file(str(path)), api_name="/attention")
    assert overlay.endswith((".png", ".webp"))

    answer = client.predict(handle_file(str(path)), "things", api_name="/predict")
    [labeling] = bench.predict("things", vectors=bench.embedder_of_probe("things").embed([path]))
    assert answer["confidences"][0]["label"] == labeling.top[0][0]
    assert answer["confidences"][0]["confidence"] == pytest.approx(labeling.top[0][1], abs=1e-3)


def test_an_error_of_the_server_is_its_sentence(client):
    from gradio_client.exceptions import AppError

    with pytest.raises(AppError, match="no item"):
        client.predict("missing", api_name="/similar")


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


@pytest.mark.browser
def test_a_click_in_the_gallery_shows_neighbors(demo, chromium, served):
    page = chromium.new_page()
    page.goto(demo)
    page.locator("button.thumbnail-item, .grid-container button").nth(2).click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.caption-label')].some(e => e.innerText.startsWith('1.000'))"
    )
    page.close()
