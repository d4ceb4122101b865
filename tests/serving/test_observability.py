"""What operators see: health, metrics, traces, timings, the access and audit logs, and the examples in deploy/."""

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from fake_encoder import FakeEncoder
from fastapi import FastAPI
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from rest_requests import TIMING, as_text, upload
from server_process import ServerProcess
from starlette.testclient import TestClient
from waiting import until

import nnclr_hub
from nnclr_hub.errors import ModelError, NotReady
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.workbench import Workbench
from serving import problems
from serving.jobs import Jobs
from serving.models import Engines
from serving.readiness import Startup
from serving.settings import Settings
from serving.telemetry import Json, Metrics, Text, observed

ROOT = Path(__file__).parents[2]
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module", autouse=True)
def exported() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve, exported):
    """Run a separate server, whose traces are exported from its start."""
    yield from serve(model, tmp_path_factory.mktemp("observed") / "store", capacity=100)


def samples(client) -> dict:
    """Values of /metrics by name and labels."""
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


# ---- health


def test_alive_and_ready(client, collection):
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    body = ready.json()
    assert (ready.status_code, body["status"], body["model_warm"], body["threads_alive"]) == (200, "ready", True, True)
    assert body["collection_states"] == {"ready": 1}
    assert (body["collections_loaded"], body["collections_total"]) == (1, 1)  # made after the start
    assert "photos" not in ready.text


def test_readiness_counts_loaded_and_damaged_collections(tmp_path, model, serve):
    with open_store(tmp_path / "store") as store:
        for name in ("a", "b", "c"):
            store.create(name, CollectionSpec(4))
    [damaged, *_] = (tmp_path / "store" / "collections").glob("*.sqlite")
    damaged.write_bytes(b"no database" * 1000)
    for server in serve(model, tmp_path / "store"):
        report = httpx.get(f"{server.url}/readyz", timeout=60).json()
        assert (report["status"], report["collections_loaded"], report["collections_total"]) == ("ready", 3, 3)
        assert report["collection_states"] == {"ready": 2, "damaged": 1}


@contextmanager
def starting(folder, load: Callable[[str], FakeEncoder]) -> Iterator[tuple[Startup, Engines]]:
    """Yield the Startup of a server on a store, which has not begun to load, and its models."""
    engines = Engines("default", Settings(), load=load)
    with open_store(folder) as store:
        bench = Workbench(engines, store)
        jobs = Jobs(bench, Metrics(), waiting=10, keep=10)
        try:
            yield Startup(engines, bench, jobs), engines
        finally:
            jobs.stop()
            engines.close(0.2)


def test_a_model_that_fails_to_load_is_reported_without_its_path(tmp_path):
    def broken(source: str) -> FakeEncoder:
        raise ModelError(f"{tmp_path}/model.safetensors is damaged: fetch it again.")

    with starting(tmp_path / "store", broken) as (loading, _):
        before = loading.report()
        assert (before.status, before.model_warm, before.collections_total) == ("loading", False, 0)
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
    with starting(tmp_path / "store", encoders.__getitem__) as (loading, engines):
        loading.run()
        engines.get("other")
        assert loading.report().status == "ready"
        with pytest.raises(NotReady):
            engines.get(source).embed_each([b"deadly"])
        report = loading.report()
        well.set()
    assert (report.status, report.threads_alive) == (status, False)
    assert "device thread" in report.detail


def test_a_store_that_is_gone_replaced_or_not_writable_is_reported(model, tmp_path, serve, monkeypatch):
    """Searches would not notice: their index is in memory."""
    folder, away = tmp_path / "store", tmp_path / "away"
    for server in serve(model, folder):
        with httpx.Client(base_url=server.url, timeout=60) as client:
            client.put("/api/v1/collections/c", json={"dim": 2}).raise_for_status()
            reports = [client.get("/readyz")]
            folder.rename(away)
            reports.append(client.get("/readyz"))
            assert "process_cpu_seconds_total" in client.get("/metrics").text
            folder.mkdir()
            reports.append(client.get("/readyz"))
            folder.rmdir()
            away.rename(folder)
            reports.append(client.get("/readyz"))
            (folder / "collections").rename(away)
            reports.append(client.get("/readyz"))
            away.rename(folder / "collections")
            with monkeypatch.context() as patch:  # root may write everywhere but on a read-only file system
                patch.setattr("os.access", lambda path, mode: (path, mode) != (folder, os.W_OK))
                reports.append(client.get("/readyz"))
            reports.append(client.get("/readyz"))
    want = ["ready", "ill", "ill", "ready", "ill", "ill", "ready"]
    assert [report.json()["status"] for report in reports] == want
    assert [report.status_code for report in reports] == [200 if one == "ready" else 503 for one in want]
    assert str(tmp_path) not in "".join(report.text for report in reports)


# ---- metrics


def test_metrics_describe_the_process_and_the_store(client, collection):
    vectors = np.eye(32, dtype=np.float32)[:5]
    items = [{"id": f"i{i}", "vector": vector.tolist()} for i, vector in enumerate(vectors)]
    assert client.put(f"{collection}/items", json=items).status_code == 200
    until(lambda: samples(client)["nnclr_http_requests_in_progress",] == 1)  # this one
    found = samples(client)
    photos = ("collection", "photos")
    assert found["nnclr_build_info", ("version", nnclr_hub.__version__)] == 1
    assert (found["nnclr_collection_items", photos], found["nnclr_collection_lag", photos]) == (5, 0)
    above_zero = [("process_cpu_seconds_total",), ("nnclr_collection_commit_seconds", photos)]
    above_zero += [("nnclr_collection_index_bytes", photos, ("kind", "flat")), ("nnclr_store_disk_free_bytes",)]
    assert all(found[name] > 0 for name in above_zero)
    assert found["process_resident_memory_bytes",] > 1e7


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
    for method in ("BREW", "get"):
        client.request(method, "/healthz")
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
    labels = [dict(key[1:]) for key in after if key[0] == requests]
    assert not [one for one in labels if "such" in one["route"] or "photos" in one["route"]]
    methods = {one["method"] for one in labels}
    assert methods <= {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "OTHER"}


def test_examples_in_deploy_name_metrics_that_exist(client):
    names = {family.name for family in text_string_to_metric_families(client.get("/metrics").text)}
    board = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += re.findall(r"expr: (.+)", (ROOT / "deploy" / "prometheus-rules.yml").read_text())
    used = {name for text in texts for name in re.findall(r"\b(?:nnclr|process)_\w+", text)}
    assert len(texts) > 20
    assert {re.sub("_(total|bucket|sum|count)$", "", name) for name in used} <= names


# ---- ids, timings and traces


def test_a_response_has_timings_and_a_new_id_or_the_valid_one_of_the_client(client):
    """See `is_problem` for errors."""
    for id in ("abc-123", TRACE, "a:b~c._-"):
        assert client.get("/nothing", headers={"X-Request-ID": id}).json()["instance"] == f"/nothing#{id}"
    invalid = ("", "a" * 129, "a b", 'x"y', "<script>", "ä".encode())
    given = [client.get("/healthz", headers={"X-Request-ID": id}).headers for id in invalid]
    ids = {headers["X-Request-ID"] for headers in given}
    assert len(ids) == len(invalid)
    assert all(re.fullmatch("[0-9a-f]{32}", id) for id in ids)
    assert all(TIMING.fullmatch(headers["Server-Timing"]) for headers in given)


def test_a_request_continues_the_trace_of_its_client_and_times_its_stages(client, collection, image_files, exported):
    exported.clear()
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    assert client.post(f"{collection}/items", files=upload(image_files[2:4]), headers=headers).status_code == 200
    image = {"image": ("q.jpg", image_files[0].read_bytes(), "image/jpeg")}
    answer = client.post(f"{collection}/search", files=image)
    assert {"body", "decode", "forward", "search"} <= set(re.findall(r"(\w+);dur", answer.headers["Server-Timing"]))

    def root(name: str):
        return next((span for span in exported.get_finished_spans() if span.name == name), None)

    adding, searching = (f"POST /api/v1/collections/{{name}}/{what}" for what in ("items", "search"))
    until(lambda: root(adding) and root(searching))
    added, searched = root(adding), root(searching)
    assert f"{added.context.trace_id:032x}" == TRACE
    assert added.attributes["http.response.status_code"] == 200
    stages = {added.name: set(), searched.name: set()}
    for span in exported.get_finished_spans():
        for parent in (added, searched):
            if span.parent is not None and span.parent.span_id == parent.context.span_id:
                stages[parent.name].add(span.name)
                assert span.start_time <= span.end_time <= parent.end_time
    assert {"decode", "queue", "forward", "commit"} <= stages[adding]
    assert {"decode", "queue", "forward", "search"} <= stages[searching]


# ---- logs


def test_each_write_has_an_audit_line(client, collection, caplog):
    created = "/api/v1/collections/{name}"  # by the fixture: a line is logged after its response was sent

    def lines() -> list[dict]:
        fields = ("key", "method", "route", "collection", "count")
        return [
            {name: record.fields[name] for name in fields if name in record.fields}
            for record in caplog.records
            if record.name == "nnclr_hub.audit" and record.fields["route"] != created
        ]

    items = [{"id": name, "vector": [1.0] * 32} for name in "abc"]
    with caplog.at_level(logging.INFO, logger="nnclr_hub.audit"):
        client.put(f"{collection}/items", json=items)
        client.put(f"{collection}/items", json=[{"id": "a", "vector": [1.0]}])  # refused
        client.post(f"{collection}/search", json={"id": "a"})
        client.delete(f"{collection}/items/a")
        client.put("/api/v1/aliases/live", json={"collection": "photos"})
        client.delete("/api/v1/aliases/live")
        until(lambda: len(lines()) == 4)
    route = "/api/v1/collections/{name}/items"
    common = {"key": "127.0.0.1"}
    assert lines() == [
        {**common, "method": "PUT", "route": route, "collection": "photos", "count": 3},
        {**common, "method": "DELETE", "route": f"{route}/{{id}}", "collection": "photos", "count": 1},
        {**common, "method": "PUT", "route": "/api/v1/aliases/{alias}"},
        {**common, "method": "DELETE", "route": "/api/v1/aliases/{alias}"},
    ]


def test_a_failure_is_answered_counted_and_logged_once(caplog):
    app, metrics = FastAPI(), Metrics()
    problems.install(app)

    @app.get("/fails/{secret}")
    def fails(secret: str):
        raise RuntimeError("only in the log")

    client = TestClient(observed(app, metrics))
    with caplog.at_level(logging.INFO):
        response = client.get("/fails/secret", headers={"X-Request-ID": "me"})
    assert (response.status_code, response.headers["X-Request-ID"]) == (500, "me")
    assert (response.json()["code"], response.json()["instance"]) == ("internal", "/fails/secret#me")
    assert "only in the log" not in response.text
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    assert b'route="/fails/{secret}",status="500"} 1.0' in generate_latest(metrics.registry)
    lines = [record for record in caplog.records if record.name == "nnclr_hub.access"]
    assert [line.fields["route"] for line in lines].count("/fails/{secret}") == 1  # others end late


@pytest.mark.parametrize("root", ["", "/behind/a/proxy"])
def test_routes_of_a_mounted_app_are_logged_under_its_path_at_debug_level(root, caplog):
    inner, app, metrics = FastAPI(), FastAPI(), Metrics()
    inner.get("/queue/{event}")(lambda event: event)
    app.get("/own/{name}")(lambda name: name)
    app.mount("/app", inner)
    client = TestClient(observed(app, metrics), root_path=root)
    with caplog.at_level(logging.INFO, "nnclr_hub.access"):
        assert [client.get(root + path).status_code for path in ("/app/queue/secret", "/own/a")] == [200, 200]
    assert [record.fields["route"] for record in caplog.records if hasattr(record, "fields")] == ["/own/{name}"]
    assert b'route="/app/queue/{event}",status="200"} 1.0' in generate_latest(metrics.registry)


def test_an_image_of_a_search_counts_once(client, collection, image_files, caplog):
    [(_, image)] = upload(image_files[:1])
    with caplog.at_level(logging.INFO, "nnclr_hub.access"):
        for files in ({"image": image}, [("image", image), ("query", (None, '{"k": 2}'))]):
            assert client.post(f"{collection}/search", files=files).status_code == 200
        assert client.post(f"{collection}/search", json={"image": as_text(image_files[0])}).status_code == 200
        client.get("/healthz")  # the line of a request is written after its answer
    lines = [json.loads(Json().format(record)) for record in caplog.records if record.name == "nnclr_hub.access"]
    assert [line["images"] for line in lines if line["route"].endswith("/search")] == [1, 1, 1]


def test_lines_are_text_or_json_and_contain_no_private_data(client, image_files, caplog):
    with caplog.at_level(logging.INFO, "nnclr_hub.access"):
        headers = {"Authorization": "Bearer my-secret-key", "X-Request-ID": "one"}
        client.post("/api/v1/embed", files=[("files", ("my-secret-name.jpg", b"my-secret-body"))], headers=headers)
        client.post("/api/v1/embed", files=upload(image_files[:3]), headers={"X-Request-ID": "two"})
        client.get("/api/v1/collections/my-secret-collection?where=my-secret", headers={"X-Request-ID": "three"})
        client.get("/v1/models", headers={"X-Request-ID": "me"})
        client.get("/healthz")  # the line of a request is written after its answer
    records = [record for record in caplog.records if record.name == "nnclr_hub.access"]
    plain, written = ([kind().format(record) for record in records] for kind in (Text, Json))
    assert "my-secret" not in "".join(plain + written)
    entries = {entry["id"]: entry for entry in map(json.loads, written)}
    assert (entries["one"]["status"], entries["one"]["code"], entries["one"]["images"]) == (422, "undecodable_image", 1)
    assert (entries["two"]["status"], entries["two"]["route"], entries["two"]["images"]) == (200, "/api/v1/embed", 3)
    assert entries["two"]["ms"] > 0
    assert entries["three"]["route"] == "/api/v1/collections/{name}"
    [line] = [line for line in plain if "id=me" in line]
    assert re.fullmatch(r"\S+Z info +GET /v1/models 200 id=me ms=[\d.]+", line)


@pytest.mark.slow
def test_a_process_logs_json_with_the_name_of_the_key(model, tmp_path):
    """Before that it prints its addresses and logs missing source folders."""
    options = {"log_format": "json", "api_keys": '["anna:a-secret-of-sixteen-letters"]', "host": "0.0.0.0"}
    options["source_folders"] = json.dumps([str(tmp_path), str(tmp_path / "no-such-disk")])
    with (
        ServerProcess(tmp_path / "store", model=str(model), **options) as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        client.get("/v1/models", headers={"X-Request-ID": "me"})
        key = {"Authorization": "Bearer a-secret-of-sixteen-letters", "X-Request-ID": "anna-1"}
        client.get("/v1/models", headers=key)
        client.get("/healthz")
        assert process.terminate() == 0
    written = process.log.read_text().splitlines()
    [addresses] = [line for line in written if line.startswith("API: ")]
    assert re.findall(r"https?://([^:/]+)", addresses) == ["127.0.0.1"] * 3
    entries = [json.loads(line) for line in written if line.startswith("{")]
    [warned] = [entry["message"] for entry in entries if entry["level"] == "warning"]
    assert "no-such-disk" in warned
    lines = {entry["id"]: entry for entry in entries if "id" in entry}
    assert (lines["me"]["status"], lines["me"]["code"]) == (401, "unauthorized")
    assert (lines["anna-1"]["status"], lines["anna-1"]["key"]) == (200, "anna")
    assert "/healthz" not in [entry.get("route") for entry in entries]
    assert "a-secret-of" not in json.dumps(entries)
