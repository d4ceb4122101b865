"""Examples of every operation, shown as curl and as Python; each can be run after the ones before it.

    for operation, example in EXAMPLES:
        print(example.curl(), example.python())

They need an image named photo.jpg in the current folder. A test runs them all.
"""

from __future__ import annotations

from nnclr_hub.client.call_examples import IMAGE, PHOTO, ApiCall

_OPENAI = """import base64
from pathlib import Path

from openai import OpenAI

client = OpenAI(base_url="BASE_URL/v1", api_key=API_KEY)
photo = base64.b64encode(Path("photo.jpg").read_bytes()).decode()
answer = client.embeddings.create(model="default", input=[photo])
print(len(answer.data[0].embedding))"""
_LIKE = '{"must": [{"key": "label", "match": "cat"}]}'
_PHOTOS, _POINTS = "/api/v1/collections/photos", "/api/v1/collections/points"

EXAMPLES: tuple[tuple[str, ApiCall], ...] = (
    ("health-healthz", ApiCall("GET", "/healthz")),
    ("health-readyz", ApiCall("GET", "/readyz")),
    ("health-metrics", ApiCall("GET", "/metrics")),
    (
        "openai-embeddings",
        ApiCall("POST", "/v1/embeddings", json={"model": "default", "input": [IMAGE]}, standalone=_OPENAI),
    ),
    ("openai-models", ApiCall("GET", "/v1/models")),
    ("openai-model", ApiCall("GET", "/v1/models/default")),
    (
        "embed-embed",
        ApiCall("POST", "/api/v1/embed", files=(("files", PHOTO),), accept="application/x-npy", save="vectors.npy"),
    ),
    ("embed-embed", ApiCall("POST", "/api/v1/embed", json={"images": [IMAGE]})),
    ("tei-embed", ApiCall("POST", "/embed", json={"inputs": [IMAGE]})),
    ("tei-info", ApiCall("GET", "/info")),
    ("tei-health", ApiCall("GET", "/health")),
    (
        "attention-attention",
        ApiCall(
            "POST",
            "/api/v1/attention",
            files=(("image", PHOTO),),
            form={"query": {"point": [20, 30]}},
            accept="image/png",
            save="map.png",
        ),
    ),
    (
        "attention-attention",
        ApiCall("POST", "/api/v1/attention", json={"image": IMAGE, "box": [8, 8, 40, 40], "target": [IMAGE]}),
    ),
    ("collections-create", ApiCall("PUT", _PHOTOS, json={"indexed": ["label"]})),
    ("collections-list-collections", ApiCall("GET", "/api/v1/collections")),
    ("collections-describe", ApiCall("GET", _PHOTOS)),
    ("aliases-point", ApiCall("PUT", "/api/v1/aliases/live", json={"collection": "photos"})),
    ("aliases-list-aliases", ApiCall("GET", "/api/v1/aliases")),
    (
        "items-add-images",
        ApiCall(
            "POST",
            f"{_PHOTOS}/items",
            files=(("files", PHOTO),),
            form={"items": [{"id": "tom", "metadata": {"label": "cat"}}]},
        ),
    ),
    ("items-list-items", ApiCall("GET", f"{_PHOTOS}/items", params={"limit": "10", "where": _LIKE})),
    ("items-get-item", ApiCall("GET", f"{_PHOTOS}/items/tom")),
    ("items-get-items", ApiCall("POST", f"{_PHOTOS}/lookup", json={"ids": ["tom"], "with_vector": False})),
    ("items-get-thumbnails", ApiCall("POST", f"{_PHOTOS}/thumbnails", json={"ids": ["tom"]}, save="thumbnails.bin")),
    (
        "items-update-metadata",
        ApiCall(
            "PATCH",
            f"{_PHOTOS}/items",
            json={"where": {"must": [{"key": "label", "match": "cat"}]}, "metadata": {"tags": ["pet"]}},
        ),
    ),
    (
        "items-label-items",
        ApiCall("POST", f"{_PHOTOS}/labels", media_type="text/csv", shell_body="path,label\nphoto.jpg,cat"),
    ),
    ("items-facets", ApiCall("POST", f"{_PHOTOS}/facets", json={"keys": ["label", "tags"]})),
    ("items-change-indexed", ApiCall("PUT", f"{_PHOTOS}/indexed", json={"keys": ["label", "tags"]})),
    ("items-thumbnail", ApiCall("GET", f"{_PHOTOS}/items/tom/thumbnail", save="thumbnail.jpg")),
    ("items-original", ApiCall("GET", f"{_PHOTOS}/items/tom/original", save="original.jpg")),
    ("collections-count", ApiCall("GET", f"{_PHOTOS}/count", params={"where": _LIKE})),
    ("search-search", ApiCall("POST", f"{_PHOTOS}/search", files=(("image", PHOTO),), form={"query": {"k": 5}})),
    (
        "search-search-batch",
        ApiCall("POST", f"{_PHOTOS}/search/batch", json={"queries": [{"id": "tom", "k": 5}, {"image": IMAGE, "k": 5}]}),
    ),
    ("collections-changes", ApiCall("GET", f"{_PHOTOS}/changes", params={"since": "0", "limit": "10"})),
    ("collections-snapshot", ApiCall("POST", f"{_PHOTOS}/snapshot")),
    ("collections-verify", ApiCall("POST", f"{_PHOTOS}/verify")),
    ("jobs-look-after", ApiCall("POST", "/api/v1/jobs", json={"kind": "compact", "collection": "photos"})),
    ("jobs-start-backup", ApiCall("POST", "/api/v1/store/backups")),
    ("inspections-compare-encoders", ApiCall("POST", f"{_PHOTOS}/comparisons", json={"models": ["default", "pixels"]})),
    ("jobs-find-duplicates", ApiCall("POST", f"{_PHOTOS}/duplicates", json={"threshold": 0.95})),
    ("jobs-get-job", ApiCall("GET", "/api/v1/jobs/latest")),
    ("jobs-job-events", ApiCall("GET", "/api/v1/jobs/latest/events")),
    ("jobs-list-jobs", ApiCall("GET", "/api/v1/jobs", params={"state": "done", "limit": "10"})),
    ("jobs-index-folder", ApiCall("POST", f"{_PHOTOS}/index", json={"folder": "summer", "prune": True})),
    ("jobs-start-reembed", ApiCall("POST", f"{_PHOTOS}/reembed", json={"model": "default"})),
    ("jobs-cancel-job", ApiCall("DELETE", "/api/v1/jobs/latest")),
    ("jobs-job-events", ApiCall("GET", "/api/v1/jobs/latest/events")),
    ("jobs-abandon-reembed", ApiCall("DELETE", f"{_PHOTOS}/reembed")),
    (
        "probes-fit",
        ApiCall(
            "POST",
            "/api/v1/probes",
            json={
                "name": "axes",
                "items": [{"vector": [1, 0, 0], "label": "x"}, {"vector": [0, 1, 0], "label": "y"}],
                "l2": 0.01,
                "replace": True,
            },
        ),
    ),
    ("jobs-job-events", ApiCall("GET", "/api/v1/jobs/latest/events")),
    ("probes-list-all", ApiCall("GET", "/api/v1/probes")),
    ("probes-describe", ApiCall("GET", "/api/v1/probes/axes")),
    ("probes-predict", ApiCall("POST", "/api/v1/probes/axes/predict", json={"vectors": [[0.9, 0.1, 0]]})),
    ("probes-export", ApiCall("GET", "/api/v1/probes/axes/export", params={"format": "zip"}, save="axes.zip")),
    ("probes-delete", ApiCall("DELETE", "/api/v1/probes/axes")),
    ("health-session", ApiCall("GET", "/api/v1/session")),
    ("runs-list-all", ApiCall("GET", "/api/v1/runs")),
    ("runs-report", ApiCall("GET", "/api/v1/runs/first/report", save="report.html")),
    ("items-delete-item", ApiCall("DELETE", f"{_PHOTOS}/items/tom")),
    (
        "items-delete-items",
        ApiCall("POST", f"{_PHOTOS}/delete", json={"where": {"must": [{"key": "tags", "contains": "pet"}]}}),
    ),
    ("aliases-forget", ApiCall("DELETE", "/api/v1/aliases/live")),
    ("collections-create", ApiCall("PUT", _POINTS, json={"dim": 3, "metric": "l2"})),
    (
        "items-put-vectors",
        ApiCall(
            "PUT",
            f"{_POINTS}/items",
            json=[
                {"id": "a", "vector": [1, 2, 3], "metadata": {"label": "x"}},
                {"id": "b", "vector": [3, 1, 2], "metadata": {"label": "y"}},
            ],
        ),
    ),
    (
        "jobs-import-file",
        ApiCall(
            "POST",
            f"{_POINTS}/imports",
            media_type="application/x-ndjson",
            json={"id": "c", "vector": [2, 2, 2], "metadata": {"label": "x"}},
        ),
    ),
    ("jobs-import-state", ApiCall("GET", f"{_POINTS}/imports/my-upload")),
    ("jobs-discard-import", ApiCall("DELETE", f"{_POINTS}/imports/my-upload")),
    ("jobs-job-events", ApiCall("GET", "/api/v1/jobs/latest/events")),
    ("search-search", ApiCall("POST", f"{_POINTS}/search", json={"vector": [1, 2, 3.5], "k": 1})),
    ("inspections-start-inspection", ApiCall("POST", f"{_POINTS}/inspections", json={"field": "label"})),
    ("jobs-job-events", ApiCall("GET", "/api/v1/jobs/latest/events")),
    ("inspections-list-all", ApiCall("GET", f"{_POINTS}/inspections")),
    ("inspections-describe", ApiCall("GET", f"{_POINTS}/inspections/latest")),
    ("inspections-ids", ApiCall("GET", f"{_POINTS}/inspections/latest/ids")),
    ("inspections-placements", ApiCall("GET", f"{_POINTS}/inspections/latest/placements")),
    ("inspections-numbers", ApiCall("GET", f"{_POINTS}/inspections/latest/coordinates", save="map.f32")),
    ("collections-drop", ApiCall("DELETE", _POINTS)),
)
