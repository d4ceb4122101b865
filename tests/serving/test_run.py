"""Shutdown: admitted requests are answered, the store is closed, and a second signal ends the process at once."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from rest_requests import talk
from server_process import ServerProcess
from waiting import free_port, until, until_served

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from serving import run
from serving.run import ignore_new_connections
from serving.settings import Settings

TESTS = Path(__file__).parents[1]
IMAGES = 8


@pytest.fixture
def start(tmp_path) -> Iterator[Callable]:
    """start(seconds per image, images in progress before it begins, drain_s) -> (process, address)"""
    processes = []

    def begin(seconds: float, image_files: int, drain_s: float = 0.0) -> tuple[subprocess.Popen, str]:
        port = free_port()
        program = [sys.executable, TESTS / "serving" / "drained_server.py"]
        processes.append(
            subprocess.Popen(
                [*program, str(port), tmp_path / "store", str(seconds), str(image_files), str(drain_s)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        until_served(f"http://127.0.0.1:{port}/readyz")
        return processes[-1], f"http://127.0.0.1:{port}"

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def ask(address: str, number: int) -> httpx.Response:
    return httpx.post(f"{address}/api/v1/embed", files={"files": ("a.jpg", str(number).encode())}, timeout=60)


def until_begun(process: subprocess.Popen) -> None:
    assert process.stdout is not None
    too_late = threading.Timer(120, process.kill)
    too_late.start()
    assert process.stdout.readline().strip() == "begun"
    too_late.cancel()


def test_sigterm_answers_the_requests_in_progress_and_refuses_new_ones(start, tmp_path):
    process, address = start(0.2, IMAGES)
    with ThreadPoolExecutor(IMAGES) as pool, httpx.Client(base_url=address, timeout=60) as uploading:

        def late() -> Iterator[bytes]:
            yield b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.jpg"\r\n\r\n'
            time.sleep(0.3)  # the server has read so far
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            yield b"7\r\n--x--\r\n"

        asked = [pool.submit(ask, address, number) for number in range(1, IMAGES + 1)]
        until_begun(process)
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        half_sent = uploading.post("/api/v1/embed", content=late(), headers=headers)
        with pytest.raises(httpx.TransportError):
            ask(address, 1)
        answers = [one.result() for one in asked]
    assert [answer.status_code for answer in answers] == [200] * IMAGES
    assert [answer.json()["data"][0]["embedding"][0] for answer in answers] == list(range(1, IMAGES + 1))
    assert half_sent.json()["data"][0]["embedding"][0] == 7
    assert "closed" in process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert not [path for path in (tmp_path / "store").rglob("*-wal") if path.stat().st_size]
    with open_store(str(tmp_path / "store")) as store:  # nobody else has it open
        assert store.list() == []


def test_no_request_is_lost_while_the_server_drains(start):
    """Also none on a kept connection. /readyz answers 503 from the beginning, so that a balancer sends no more."""
    process, address = start(0.0, 0, drain_s=1.0)
    refused, lost, closing = threading.Event(), [], []
    served = threading.Barrier(9)

    def send_without_end() -> None:
        with httpx.Client(base_url=address, timeout=60) as client:
            answer = client.get("/readyz")
            closing.append((answer.status_code, answer.headers.get("connection")))
            served.wait(120)
            while not refused.is_set():
                try:
                    answer = client.get("/readyz")
                    closing.append((answer.status_code, answer.headers.get("connection")))
                except httpx.ConnectError:  # it no longer listens
                    refused.set()
                except httpx.TransportError as error:
                    lost.append(error)

    with ThreadPoolExecutor(8) as pool:
        clients = [pool.submit(send_without_end) for _ in range(8)]
        served.wait(120)
        process.send_signal(signal.SIGTERM)
        for one in clients:
            one.result()
    assert lost == []
    assert {(200, None), (503, "close")} <= set(closing) <= {(200, None), (200, "close"), (503, "close")}
    assert process.wait(120) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such filter")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_new_connections_can_be_ignored_while_those_before_are_served(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as listener,
        socket.create_connection(listener.getsockname()[:2], 60) as early,
        socket.socket(family) as late,
    ):
        assert ignore_new_connections(listener)
        late.settimeout(0.3)
        with pytest.raises(TimeoutError):
            late.connect(listener.getsockname())
        early.sendall(b"x")
        listener.setblocking(False)
        with listener.accept()[0] as served:
            served.settimeout(60)
            assert served.recv(1) == b"x"
        with pytest.raises(BlockingIOError):
            listener.accept()  # the late one does not wait there


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(start):
    process, address = start(60, 1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, address, 1)
        until_begun(process)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == -signal.SIGTERM
        with pytest.raises(httpx.TransportError):
            asked.result()


@pytest.mark.slow
def test_a_running_job_survives_a_shutdown_and_its_stream_of_events_ends(model, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(40_000, 64)).astype(np.float32)
    with open_store(tmp_path / "store") as store:  # a search for duplicates in it takes long
        store.create("many", CollectionSpec(64)).upsert([Item(str(i), row) for i, row in enumerate(vectors)])
    events: list[dict] = []
    with (
        ServerProcess(tmp_path / "store", model=str(model)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        body = {"threshold": 0.999, "exact": True}
        job = f"/api/v1/jobs/{client.post('/api/v1/collections/many/duplicates', json=body).json()['id']}"
        until(lambda: client.get(job).json()["done"])

        def listen() -> None:
            with client.stream("GET", f"{job}/events") as stream:
                lines = (line for line in stream.iter_lines() if line.startswith("data: "))
                events.extend(json.loads(line.removeprefix("data: ")) for line in lines)

        listener = threading.Thread(target=listen)
        listener.start()
        until(lambda: events)
        assert server.terminate(25) == 0  # shorter than the wait for an open stream
        listener.join(5)
        assert not listener.is_alive(), "the stream did not end"
    assert events[-1]["state"] in ("running", "queued")
    with open_store(tmp_path / "store") as store:
        record = store.records.get("job", job.rpartition("/")[2])
    assert record is not None
    assert (record.content["state"], record.content["attempts"]) == ("queued", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count no segments")
def test_the_head_of_a_response_leaves_with_its_body(server):
    """In one segment, because a system call for each costs more than encoding a small answer."""
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port), 60) as connection:
        for _ in range(50):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = b""
            while not answer.endswith(b'{"status":"ok"}'):
                answer += connection.recv(65536)
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
        assert int.from_bytes(info[152:156], sys.byteorder) == 50  # tcpi_data_segs_in
    head = b"HEAD /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert talk(server.url, [head]).startswith(b"HTTP/1.1 200")  # it has no body to wait for


def test_the_server_freezes_its_objects_while_it_runs(monkeypatch):
    """The garbage collector does not visit them."""
    app, seen = FastAPI(), []

    def serve(server) -> None:
        app.state.on_loaded()
        seen.append(gc.get_freeze_count())

    monkeypatch.setattr(run.Server, "run", serve)
    run.run(app, Settings())
    assert seen[0] > 100_000
    assert gc.get_freeze_count() == 0
    gc.freeze()  # as tests/conftest.py does
