"""Metrics of process and store, traces, the audit log, and the example rules and dashboard in deploy/."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from rest_requests import upload
from waiting import until

import nnclr_hub

DEPLOY = Path(__file__).parents[2] / "deploy"
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture(scope="module", autouse=True)
def exported() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


def samples(client) -> dict:
    """Values of /metrics by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
    }


def test_metrics_describe_the_process_and_the_store(server, client, collection):
    vectors = np.eye(32, dtype=np.float32)[:5]
    items = [{"id": f"i{i}", "vector": vector.tolist()} for i, vector in enumerate(vectors)]
    assert client.put(f"{collection}/items", json=items).status_code == 200
    until(lambda: samples(client)["nnclr_http_requests_in_progress",] == 1)  # this one
    found = samples(client)
    assert found["nnclr_build_info", nnclr_hub.__version__] == 1
    assert found["process_cpu_seconds_total",] > 0
    assert found["process_resident_memory_bytes",] > 1e7
    assert found["nnclr_collection_items", "photos"] == 5
    assert found["nnclr_collection_lag", "photos"] == 0
    assert found["nnclr_collection_commit_seconds", "photos"] > 0
    assert found["nnclr_collection_index_bytes", "flat", "photos"] > 0
    assert found["nnclr_store_disk_free_bytes",] > 0


def test_examples_in_deploy_name_metrics_that_exist(client):
    names = {family.name for family in text_string_to_metric_families(client.get("/metrics").text)}
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += re.findall(r"expr: (.+)", (DEPLOY / "prometheus-rules.yml").read_text())
    used = {name for text in texts for name in re.findall(r"\b(?:nnclr|process)_\w+", text)}
    assert len(texts) > 20
    assert {re.sub("_(total|bucket|sum|count)$", "", name) for name in used} <= names


def test_a_request_continues_the_trace_of_its_client(server, client, collection, image_files, exported):
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    assert client.post(f"{collection}/items", files=upload(image_files[2:4]), headers=headers).status_code == 200
    image = {"image": ("q.jpg", image_files[0].read_bytes(), "image/jpeg")}
    assert client.post(f"{collection}/search", files=image).status_code == 200

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
