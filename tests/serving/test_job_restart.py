"""`nnclr serve` ends at SIGTERM while a job runs: its stream of events ends, and the job waits for the next start."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from waiting import free_port, until_served

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Make a large collection, whose search for duplicates takes long."""
    folder = tmp_path_factory.mktemp("restart") / "store"
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40_000, 64)).astype(np.float32)
    with open_store(str(folder)) as opened:
        opened.create("many", CollectionSpec(64)).upsert([Item(str(i), row) for i, row in enumerate(vectors)])
    return folder


@contextmanager
def served(store, model):
    """Run the server as a process, and yield it with a client."""
    port = free_port()
    command = [sys.executable, "-m", "nnclr_hub.cli", "serve", "--store", str(store), "--model", str(model)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        subprocess.Popen([*command, "--port", str(port), "--no-page"], env=environment) as child,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client,
    ):
        try:
            until_served(f"http://127.0.0.1:{port}/readyz", child)
            yield child, client
        finally:
            child.kill()


def reach(client, id, *states, progress=False):
    for _ in range(6000):
        job = client.get(f"/api/v1/jobs/{id}").json()
        if job["state"] in states and (job["done"] or not progress):
            return job
        time.sleep(0.02)
    pytest.fail(f"{job} does not become {states}")


def test_a_running_job_survives_a_shutdown(store, model):
    lines: list[str] = []
    started = threading.Event()
    with served(store, model) as (child, client):
        body = {"threshold": 0.999, "exact": True}
        id = client.post("/api/v1/collections/many/duplicates", json=body).json()["id"]
        reach(client, id, "running", progress=True)

        def listen() -> None:
            with client.stream("GET", f"/api/v1/jobs/{id}/events", timeout=60) as stream:
                for line in stream.iter_lines():
                    lines.append(line)
                    if line.startswith("data: "):
                        started.set()

        listener = threading.Thread(target=listen)
        listener.start()
        assert started.wait(120)
        child.send_signal(signal.SIGTERM)
        assert child.wait(25) == 0  # shorter than the wait for an open stream
        listener.join(5)
        assert not listener.is_alive(), "the stream did not end"
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert events[-1]["state"] in ("running", "queued")
    with open_store(str(store)) as opened:
        record = opened.records.get("job", id)
        assert record is not None
        assert (record.content["state"], record.content["attempts"]) == ("queued", 0)
