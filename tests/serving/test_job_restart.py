"""`nnclr serve` ends at SIGTERM while a job runs: its stream of events ends, and the job waits for the next start."""

import json
import threading

import httpx
import numpy as np
import pytest
from server_process import ServerProcess
from waiting import until

from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item


@pytest.mark.slow
def test_a_running_job_survives_a_shutdown(model, tmp_path):
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
