"""Health over REST: liveness, readiness and metrics."""

import os
import threading
from contextlib import contextmanager

import httpx
import pytest
from fake_encoder import FakeEncoder
from prometheus_client.parser import text_string_to_metric_families
from rest_requests import upload

from nnclr_hub.errors import ModelError, NotReady
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Workbench
from serving.jobs import Jobs
from serving.models import Engines
from serving.readiness import Startup
from serving.settings import Settings
from serving.telemetry import Metrics


def samples(client) -> dict:
    """Values by name and labels."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_alive_and_ready(client, collection):
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert ready.status_code == 200
    body = ready.json()
    assert (body["status"], body["model_warm"], body["threads_alive"]) == ("ready", True, True)
    assert body["collection_states"] == {"ready": 1}
    assert (body["collections_loaded"], body["collections_total"]) == (1, 1)  # made after the start
    assert "photos" not in ready.text


@contextmanager
def starting(folder, engines):
    """Yield the Startup of a server on a store, which has not begun to load."""
    with open_store(folder) as store:
        bench = Workbench(engines, store)
        jobs = Jobs(bench, Metrics(), waiting=10, keep=10)
        yield Startup(engines, bench, jobs)
        jobs.stop()


def test_readiness_counts_loaded_and_damaged_collections(tmp_path, model):
    with open_store(tmp_path / "store") as store:
        for name in ("a", "b", "c"):
            store.create(name, CollectionSpec(4))
    [damaged, *_] = (tmp_path / "store" / "collections").glob("*.sqlite")
    damaged.write_bytes(b"no database" * 1000)
    engines = Engines(str(model), Settings())
    try:
        with starting(tmp_path / "store", engines) as loading:
            before = loading.report()
            assert (before.status, before.model_warm, before.collections_total) == ("loading", False, 0)
            loading.run()
            after = loading.report()
    finally:
        engines.close()
    assert (after.status, after.collections_loaded, after.collections_total) == ("ready", 3, 3)
    assert after.collection_states == {"ready": 2, "damaged": 1}


def test_a_model_that_fails_to_load_is_reported_without_its_path(tmp_path):
    class Broken:
        fault = None

        def get(self):
            raise ModelError(f"{tmp_path}/model.safetensors is damaged: fetch it again.")

    with starting(tmp_path / "store", Broken()) as loading:
        loading.run()
        report = loading.report()
    assert report.status == "failed"
    assert "model.safetensors" in report.detail
    assert str(tmp_path) not in report.detail


@pytest.mark.parametrize(("source", "status"), [("default", "ill"), ("other", "ready")])
def test_only_a_failure_of_the_default_model_makes_the_server_ill(tmp_path, source, status):
    def die():
        encoders[source].before = lambda: well.wait(120)  # the test image waits
        raise SystemExit

    well = threading.Event()
    encoders = {name: FakeEncoder(name=name, forwarding={"deadly": die}) for name in ("default", "other")}
    engines = Engines("default", Settings(), load=encoders.__getitem__, weigh=lambda source: 0)
    try:
        with starting(tmp_path / "store", engines) as loading:
            loading.run()
            engines.get("other")
            assert loading.report().status == "ready"
            with pytest.raises(NotReady):
                engines.get(source).embed_each([b"deadly"])
            report = loading.report()
            well.set()
    finally:
        well.set()
        engines.close(0.2)
    assert (report.status, report.threads_alive) == (status, False)
    assert "device thread" in report.detail


def test_a_server_whose_store_is_gone_replaced_or_not_writable_is_not_ready(tmp_path, monkeypatch):
    """Searches would not notice: their index is in memory."""
    folder, away = tmp_path / "store", tmp_path / "away"
    engines = Engines("fake", Settings(), load=lambda source: FakeEncoder(), weigh=lambda source: 0)
    try:
        with open_store(folder) as store:
            store.create("a", CollectionSpec(4))
        with starting(folder, engines) as loading:
            loading.run()
            reports = [loading.report()]
            folder.rename(away)
            reports.append(loading.report())
            folder.mkdir()
            reports.append(loading.report())
            folder.rmdir()
            away.rename(folder)
            reports.append(loading.report())
            (folder / "collections").rename(away)
            reports.append(loading.report())
            away.rename(folder / "collections")
            with monkeypatch.context() as patch:  # root may write everywhere but on a read-only file system
                patch.setattr("os.access", lambda path, mode: (path, mode) != (folder, os.W_OK))
                reports.append(loading.report())
    finally:
        engines.close(0.2)
    assert [report.status for report in reports] == ["ready", "ill", "ill", "ready", "ill", "ill"]
    assert str(tmp_path) not in "".join(report.detail or "" for report in reports)


def test_every_request_and_stage_is_counted(client, collection, image_files, model):
    before = samples(client)
    client.post(f"{collection}/items", files=upload(image_files[:2]))
    client.put(f"{collection}/items", json=[{"id": "a", "vector": [1.0] * 32}])
    client.post(f"{collection}/search", json={"id": "a"})
    client.post("/api/v1/embed", files=upload(image_files[:2]))
    for number in range(20):
        client.get(f"/no/such/path/{number}")
        client.get(f"{collection}/items/no-such-item-{number}")
    client.post("/api/v1/embed", files=upload(image_files[:1] * 129))
    after = samples(client)

    def grown(name: str, **labels: str) -> float:
        key = (name, *sorted(labels.items()))
        return after.get(key, 0) - before.get(key, 0)

    requests, search = "nnclr_http_requests_total", "/api/v1/collections/{name}/search"
    assert grown(requests, method="POST", route=search, status="200") == 1
    assert grown(requests, method="GET", route="none", status="404") == 20
    assert grown(requests, method="GET", route="/api/v1/collections/{name}/items/{id}", status="404") == 20
    assert grown("nnclr_http_request_seconds_count", route=search) == 1
    assert grown("nnclr_refused_total", reason="request_too_large") == 1
    for stage in ("body", "decode", "queue", "forward", "embed", "ingest", "store", "search"):
        assert grown("nnclr_stage_seconds_count", stage=stage) >= 1, stage
    assert grown("nnclr_images_total", model="resnet18", outcome="embedded") == 4
    assert str(model.parent) not in client.get("/metrics").text
    routes = {dict(key[1:])["route"] for key in after if key[0] == requests}
    assert not [route for route in routes if "such" in route or "photos" in route]


@pytest.mark.parametrize("method", ["BREW", "get"])
def test_an_unknown_method_does_not_create_a_metric_label(client, method):
    client.request(method, "/healthz")
    methods = {dict(key[1:])["method"] for key in samples(client) if key[0] == "nnclr_http_requests_total"}
    assert methods <= {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "OTHER"}


def test_a_store_folder_that_is_gone_is_reported_and_metrics_stay(model, tmp_path, serve):
    folder = tmp_path / "store"
    for server in serve(model, folder):
        with httpx.Client(base_url=server.url, timeout=60) as client:
            client.put("/api/v1/collections/c", json={"dim": 2}).raise_for_status()
            assert client.get("/readyz").status_code == 200
            folder.rename(tmp_path / "gone")
            try:
                ready = client.get("/readyz")
                assert (ready.status_code, ready.json()["status"]) == (503, "ill")
                metrics = client.get("/metrics")
                assert metrics.status_code == 200
                assert "process_cpu_seconds_total" in metrics.text
            finally:
                (tmp_path / "gone").rename(folder)
            assert client.get("/readyz").status_code == 200
