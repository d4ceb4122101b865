"""Replicas on a real Ray cluster of this machine, over a Milvus server that they share."""

import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rest_requests import is_problem, upload
from server_process import ServerProcess
from store.milvus_servers import lite_server

from nnclr_hub import Client, Item
from nnclr_hub.store import open_store
from nnclr_hub.store.records import Record
from nnclr_hub.workbench import NewCollection
from serving.jobs import JOB

pytestmark = pytest.mark.scale
pytest.importorskip("ray", reason="Ray is not installed")
CONNECTIONS = 6  # of one replica
CALLERS = 4
ENDLESS = "0" * 14  # a job of another server that never ends
STALE_S = 1.0  # until other clients of Milvus see a write


@pytest.fixture(scope="module")
def replicas(model, tmp_path_factory) -> Iterator[ServerProcess]:
    """Run `nnclr serve --replicas 2`; all files that Ray writes are in temporary folders."""
    folder = tmp_path_factory.mktemp("replicas")
    ray = Path(tempfile.mkdtemp(prefix="r", dir="/tmp"))  # the paths of Unix sockets must be short
    with pytest.MonkeyPatch.context() as patch, lite_server(folder) as milvus:
        for name, place in (("RAY_TMPDIR", ray), ("HOME", folder), ("NNCLR_STATE", folder / "state")):
            patch.setenv(name, str(place))
        with open_store(milvus.uri) as store:
            about = {"id": ENDLESS, "kind": "compact", "params": {}, "state": "running", "created": 1.0}
            store.records.put(Record(JOB, ENDLESS, about))
        server = ServerProcess(
            milvus.uri, model=str(model), log=folder / "log", flags=("--replicas", "2"), connections=CONNECTIONS
        )
        try:
            with server:
                yield server
                assert server.terminate() == 0
            said = server.log.read_text()
            assert "Traceback" not in said, said
            assert not any(alive(pid) for pid in pids(server)), "a replica outlived its command"
        finally:
            shutil.rmtree(ray, ignore_errors=True)


@pytest.fixture
def client(replicas) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=replicas.url, timeout=60) as opened:
        yield opened


@pytest.fixture(scope="module")
def vectors(encoder, image_files) -> np.ndarray:
    """Return the vectors of all images, from the library."""
    return encoder.embed(image_files)


def pids(server: ServerProcess) -> list[int]:
    """Return the process ids of replicas that logged anything, oldest first."""
    lines = (line.partition("pid=")[2] for line in server.log.read_text().splitlines() if "(ServeReplica:" in line)
    return list(dict.fromkeys(int(line.partition(")")[0]) for line in lines))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def embedded(url: str, seconds: float) -> dict[str, float]:
    """Return the images that each replica embedded, for the replicas that answered /metrics."""
    found: dict[str, float] = {}
    end = time.monotonic() + seconds
    with httpx.Client(base_url=url, timeout=60) as client:
        while len(found) < 2 and time.monotonic() < end:
            text = client.get("/metrics").text
            families = {family.name: family for family in text_string_to_metric_families(text)}
            for sample in families["nnclr_images"].samples:
                if sample.labels.get("outcome") == "embedded":
                    found[sample.labels["replica"]] = sample.value
    return found


def test_both_replicas_answer_with_the_vectors_of_the_library(replicas, image_files, vectors):
    def ask(number: int) -> np.ndarray:
        with Client(replicas.url) as client:
            return client.embed([image_files[number]])[0]

    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(ask, range(len(image_files))))
    np.testing.assert_allclose(np.stack(found), vectors, atol=1e-5)
    by_replica = embedded(replicas.url, 30)
    assert len(by_replica) == 2
    assert sum(by_replica.values()) == len(image_files)


def test_all_replicas_find_what_one_stored(replicas, model, photos, image_files, serve, tmp_path):
    plain = serve(model, tmp_path / "store")
    found = []
    for url in (replicas.url, next(plain).url):
        with Client(url) as client:
            client.create_collection("summer")
            collection = client.collection("summer")
            assert collection.index_folder(photos).added == len(image_files)
            time.sleep(STALE_S)
            found.append([collection.search(image=image_files[n // 4 * 7], k=5) for n in range(16)])
    plain.close()
    for ours, theirs in zip(*found, strict=True):
        assert [match.id for match in ours] == [match.id for match in theirs]
        np.testing.assert_allclose([one.score for one in ours], [one.score for one in theirs], atol=1e-5)


def test_all_replicas_see_a_recreated_collection(client):
    for dim in (3, 5):
        assert client.put("/api/v1/collections/again", json={"dim": dim}).status_code == 201
        assert {client.get("/api/v1/collections/again").json()["dim"] for _ in range(12)} == {dim}
        for n in range(12):
            item = {"id": f"item-{n}", "vector": [1.0] * dim}
            assert client.put("/api/v1/collections/again/items", json=[item]).status_code == 200
        assert client.delete("/api/v1/collections/again").status_code == 204


def test_jobs_and_probes_need_a_single_server(client):
    client.put("/api/v1/collections/jobless", json={"dim": 3})
    items = [{"id": f"{n}", "vector": [1.0, n, 0.0], "metadata": {"label": "ab"[n % 2]}} for n in range(8)]
    assert client.put("/api/v1/collections/jobless/items", json=items).status_code == 200
    time.sleep(STALE_S)
    for path, body, kept in (
        ("collections/jobless/compact", None, [ENDLESS]),
        ("probes", {"name": "cats", "collection": "jobless", "field": "label"}, []),
    ):
        for _ in range(4):
            assert "over the store alone" in is_problem(client.post(f"/api/v1/{path}", json=body), 403, "read_only")
        listed = "jobs" if body is None else path
        assert [one["id"] for one in client.get(f"/api/v1/{listed}").json()[listed]] == kept


def test_overload_asks_for_a_retry(replicas, image_files):
    """Ray refuses requests above the connections of all replicas and as many waiting ones."""
    heard: Counter[int] = Counter()

    def ask(_: int) -> None:
        with httpx.Client(base_url=replicas.url, timeout=60) as client:
            response = client.post("/api/v1/embed", files=upload(image_files))
        heard[response.status_code] += 1
        if response.status_code != 200:
            assert (response.status_code, response.headers["retry-after"]) == (429, "1")
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["code"] == "overloaded"

    with ThreadPoolExecutor(8 * CONNECTIONS) as pool:
        list(pool.map(ask, range(8 * CONNECTIONS)))
    assert set(heard) == {200, 429}, heard


def test_a_killed_replica_is_replaced_and_clients_get_their_answers(replicas, image_files, vectors):
    """Our client retries. Other clients get 503 with Retry-After."""
    stop, failures, heard = threading.Event(), [], Counter()

    def patient(number: int) -> None:
        with Client(replicas.url, timeout=120) as client:
            collection = client.collection("killed")
            while not stop.is_set():
                try:
                    found = client.embed(image_files[number : number + 4])
                    np.testing.assert_allclose(found, vectors[number : number + 4], atol=1e-5)
                    collection.upsert([Item(f"of-{number}", np.array([1, 0, number], np.float32))])
                except Exception as error:  # noqa: BLE001 - reported below
                    failures.append(error)

    def plain(number: int) -> None:
        with httpx.Client(base_url=replicas.url, timeout=60) as client:
            while not stop.is_set():
                response = client.post("/api/v1/embed", files=upload(image_files[number : number + 1]))
                heard[response.status_code, response.headers.get("retry-after")] += 1
                if response.status_code == 200:
                    found = [entry["embedding"] for entry in response.json()["data"]]
                    np.testing.assert_allclose(found, vectors[number : number + 1], atol=1e-5)

    with Client(replicas.url) as client:
        client.create_collection("killed", NewCollection(dim=3))
    with ThreadPoolExecutor(2 * CALLERS) as pool:
        callers = [pool.submit(act, number) for number in range(CALLERS) for act in (patient, plain)]
        before = [pid for pid in pids(replicas) if alive(pid)]
        time.sleep(2)
        os.kill(before[0], signal.SIGKILL)
        end = time.monotonic() + 90
        while set(pids(replicas)) <= set(before) and time.monotonic() < end:
            time.sleep(0.5)
        stop.set()
        for caller in callers:
            caller.result()
    assert failures == []
    assert heard[200, None] > CALLERS, heard
    assert set(heard) <= {(200, None), (503, "1"), (429, "1")}, heard
    assert len(set(pids(replicas)) - set(before)) == 1, "the killed replica was not replaced"
    with Client(replicas.url) as client:
        time.sleep(STALE_S)
        assert client.collection("killed").count() == CALLERS


def test_sigterm_drains_all_replicas(replicas, image_files):
    """The last test of the module, because it ends the server."""

    def ask(_: int) -> int:
        with httpx.Client(base_url=replicas.url, timeout=60) as client:
            return client.post("/api/v1/embed", files=upload(image_files)).status_code

    def watch(_: int) -> bytes:
        with httpx.stream("GET", f"{replicas.url}/api/v1/jobs/{ENDLESS}/events", timeout=60) as events:
            assert events.status_code == 200
            return b"".join(events.iter_raw())  # raises where the stream is cut

    with ThreadPoolExecutor(2 * CALLERS) as pool:
        watched = [pool.submit(watch, number) for number in range(CALLERS)]
        time.sleep(2)
        assert not any(one.done() for one in watched)
        asked = [pool.submit(ask, number) for number in range(CALLERS)]
        time.sleep(0.3)
        assert not all(one.done() for one in asked)
        assert replicas.terminate() == 0
        assert "cannot close event streams" not in replicas.log.read_text()  # or the drain would have waited for them
        assert {one.result() for one in asked} == {200}
        assert all(one.result().count(b"event: state") == 1 for one in watched)
