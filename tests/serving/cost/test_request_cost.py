"""The most expensive permitted request of each kind costs no more than its budget.

Each is at the limit of what the server accepts, or above it, where refusing must be cheap. A budget has CPU, memory,
bytes of the answer, and turns of the event loop: none depends on other work on the machine, as a wait would.
"""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from request_meter import JSON, Meter, Request
from server_process import ServerProcess

from nnclr_hub.client import Client
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item

DIM = 256
WIDE, WIDE_ITEMS, WIDE_BYTES = "wide", 1000, 20_000  # items with much metadata
TALL, TALL_ITEMS = "tall", 20_000  # many items
CLASSES = 100


@dataclass(frozen=True)
class Budget:
    """What a request may cost.

    status: of its answer.
    cpu_s: CPU seconds of the server and its decoders, for one core of 2.5 GHz.
    answer: bytes.
    memory: bytes by which the peak may grow.
    turn_s: CPU seconds of the event loop between two answers of /healthz.
    """

    status: int
    cpu_s: float
    answer: float = 1e6  # an error, or little else
    memory: float = 300e6
    turn_s: float = 0.1


# ---- what is measured

ANSWER = 65e6  # the default of NNCLR_ANSWER_BYTES, and the rest of the answer
# checked by default, each for another limit; `make slow` runs the others
TELLING = (
    "answer_at_limit",
    "batch_of_64",
    "examples_190000",
    "longest_filter",
    "nested_json",
    "scroll_wide",
    "embed_128",
)


@cache
def cases() -> dict[str, tuple[Budget, Request]]:
    """Return the requests and their budgets by name."""
    rng = np.random.default_rng(0)
    vector = rng.normal(size=DIM).round(6).tolist()
    wide, tall = f"/api/v1/collections/{WIDE}", f"/api/v1/collections/{TALL}"
    search, predict = f"{tall}/search", "/api/v1/probes/cost/predict"
    longest = {"must_not": [{"key": f"k{i}", "in": [f"no {i} {j}" for j in range(500)]} for i in range(64)]}
    short = {"must_not": [{"key": f"k{i}", "in": [i, "no", 1.5]} for i in range(64)]}
    full = {"vector": vector, "k": 1000, "with_vector": True}
    packed = base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    noise = rng.integers(0, 255, (256, 256, 3), np.uint8)
    large = np.kron(noise[:250, :160], np.ones((25, 40, 1), np.uint8))  # 40 megapixels
    ids = [f"i{i}" for i in range(10_000)]
    new = [{"id": f"new{i}", "vector": vector} for i in range(4_800)]
    labeled = [{"vector": packed, "label": i % 9} for i in range(13_000)]
    nested = b'{"where":' + b'{"a":[' * 500_000 + b"]}" * 500_000 + b"}"

    def post(path: str, body: Callable[[], Any]) -> Request:
        return Request("POST", path, lambda: _json(body()))

    def get(path: str) -> Request:
        return Request("GET", path)

    def batch(path: str, queries: list[Any]) -> Request:
        return post(f"{path}/search/batch", lambda: {"queries": queries})

    return {
        "answer_at_limit": (Budget(200, 1.0, ANSWER), batch(wide, [full | {"k": 500}] * 5)),
        # 1.5 GB if it were answered
        "batch_of_64": (Budget(413, 0.6, memory=50e6), batch(wide, [full] * 64)),
        "search_k_1000": (Budget(200, 0.4, ANSWER), post(f"{wide}/search", lambda: full)),
        "examples_1000": (Budget(200, 0.3, memory=50e6), post(search, lambda: _examples(1000))),
        "examples_190000": (Budget(422, 0.6), post(search, lambda: _examples(190_000))),
        "batch_of_examples": (Budget(200, 1.0), batch(tall, [_examples(1000)] * 10)),
        "longest_filter": (  # its first use loads the columns of 64 keys, which next to other work takes 1.5 s
            Budget(200, 2.5, memory=50e6),
            post(search, lambda: {"vector": vector, "exact": True, "where": longest}),
        ),
        "filter_values": (
            Budget(413, 0.8),
            post(search, lambda: {"vector": vector, "where": {"must": [{"key": "a", "in": [1] * 6_600_000}]}}),
        ),
        "count_longest_filter": (Budget(200, 0.6, memory=50e6), get(f"{tall}/count?where={_quoted(short)}")),
        "vector_numbers": (Budget(413, 0.9), post(search, lambda: {"vector": [1] * 9_500_000})),
        "nested_json": (Budget(413, 0.3, memory=100e6), Request("POST", search, lambda: nested)),
        "scroll_vectors": (Budget(200, 0.3, ANSWER, 100e6), get(f"{tall}/items?limit=1000&with_vector=true")),
        "scroll_10000": (Budget(200, 0.4, ANSWER, 100e6), get(f"{tall}/items?limit=10000")),
        "scroll_wide": (Budget(200, 0.4, ANSWER, 150e6), get(f"{wide}/items?limit=1000&with_vector=true")),
        "changes_10000": (Budget(200, 0.4, ANSWER, 100e6), get(f"{tall}/changes?limit=10000")),
        # 24 s, in which /healthz is requested all the time
        "changes_wait": (Budget(200, 4.0, memory=50e6), get(f"{tall}/changes?since={TALL_ITEMS}&wait=30")),
        "put_vectors": (Budget(200, 1.5), Request("PUT", f"{tall}/items", lambda: _json(new))),
        "predict_vectors": (
            Budget(200, 2.5, ANSWER),
            post(predict, lambda: {"vectors": [packed] * 10_000, "top": 100}),
        ),
        "predict_ids": (
            Budget(200, 2.5, ANSWER),
            post(predict, lambda: {"collection": TALL, "ids": ids, "top": 100}),
        ),
        "multipart_fields": (Budget(400, 0.3, memory=50e6), _form({f"f{i}": b"x" for i in range(100_000)})),
        "multipart_20mb": (Budget(422, 1.5, memory=200e6), _form({"files": b"\xff\xd8" + bytes(19_900_000)})),
        "embed_128": (Budget(200, 5.0, memory=200e6), _form([("files", _jpeg(noise))] * 128)),
        "embed_40_megapixels": (Budget(200, 2.0), _form({"files": _jpeg(large)})),
        "embed_base64_20mb": (
            Budget(422, 0.5, memory=150e6),
            post("/api/v1/embed", lambda: {"images": [base64.b64encode(bytes(14_900_000)).decode()]}),
        ),
        "embeddings_1024": (
            Budget(200, 12.0, ANSWER),
            post("/v1/embeddings", lambda: {"model": "default", "input": [_text(noise[:128, :128])] * 1024}),
        ),
        "attention_7": (
            Budget(200, 3.0, 80e6),
            post("/api/v1/attention", lambda: {"image": _text(noise), "target": [_text(noise)] * 6}),
        ),
        "items_20mb": (
            Budget(422, 0.6, memory=200e6),
            Request(
                "POST",
                f"{tall}/items",
                lambda: _json({"items": [{"image": "A" * 19_900_000}]}),
                {"Content-Type": JSON},
            ),
        ),
        # the last, because its job may start late and would count as a cost of the next request
        "fit_probe_items": (
            Budget(202, 5.0, memory=400e6),
            post("/api/v1/probes", lambda: {"name": f"p{uuid.uuid4().hex}", "items": labeled}),
        ),
    }


def _json(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _quoted(where: Any) -> str:
    return str(httpx.QueryParams({"w": json.dumps(where, separators=(",", ":"))})).removeprefix("w=")


def _examples(count: int) -> dict[str, Any]:
    return {"positive": [{"id": f"i{i % 5000}"} for i in range(count)]}


def _jpeg(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=80)
    return file.getvalue()


def _text(pixels: np.ndarray) -> str:
    return base64.b64encode(_jpeg(pixels)).decode()


def _form(fields: Mapping[str, bytes] | list[tuple[str, bytes]]) -> Request:
    """Return an upload to /embed; contents of more than one byte are files."""

    def body() -> bytes:
        parts = []
        for name, content in fields.items() if isinstance(fields, Mapping) else fields:
            file = '; filename="a.jpg"' if len(content) > 1 else ""
            parts.append(f'--B\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content)
        return b"\r\n".join(parts) + b"\r\n--B--\r\n"

    return Request("POST", "/api/v1/embed", body, {"Content-Type": "multipart/form-data; boundary=B"})


# ---- the world


def fill(store: Path) -> None:
    """Make the collections that the requests search."""
    rng = np.random.default_rng(1)
    with open_store(str(store)) as opened:
        spec = CollectionSpec(DIM, indexed=())
        wide = opened.create(WIDE, spec)
        for start in range(0, WIDE_ITEMS, 250):
            vectors = rng.normal(size=(250, DIM)).astype(np.float32)
            text = "x" * WIDE_BYTES
            wide.upsert([Item(f"i{start + i}", vector, {"text": text}) for i, vector in enumerate(vectors)])
        tall = opened.create(TALL, spec)
        for start in range(0, TALL_ITEMS, 5000):
            vectors = rng.normal(size=(5000, DIM)).astype(np.float32)
            tall.upsert([Item(f"i{start + i}", row, {"n": i, "label": i % 7}) for i, row in enumerate(vectors)])


@pytest.fixture(scope="module")
def meter(tmp_path_factory) -> Iterator[Meter]:
    """Run a server on a filled store."""
    store = tmp_path_factory.mktemp("cost") / "store"
    fill(store)
    # the starter has its graph, so with this backend the server starts without torch
    with ServerProcess(store, backend="onnx") as server, httpx.Client(base_url=server.url, timeout=60) as client:
        meter = Meter(server.url, server.pid)
        # what is loaded or compiled at the first use does not count
        client.post(f"/api/v1/collections/{TALL}/search", json={"id": "i1", "k": 5}).raise_for_status()
        meter.cost(cases()["batch_of_64"][1])
        yield meter


def fit_probe(url: str) -> None:
    """Fit the probe that `predict_vectors` and `predict_ids` use."""
    vectors = np.random.default_rng(2).normal(size=(4 * CLASSES, DIM)).astype(np.float32)
    with Client(url) as client:
        labels = [i % CLASSES for i in range(len(vectors))]
        client.jobs.wait(client.probes.fit("cost", vectors=vectors, labels=labels, l2=1.0).id)


def check(meter: Meter, name: str) -> None:
    """Check the status of a request, and that nothing costs more than its budget."""
    budget, request = cases()[name]
    cost = meter.cost(request)
    limits = ("cpu_s", "answer", "turn_s", "memory")
    above = [one for one in limits if getattr(cost, one) > getattr(budget, one)]
    assert (cost.status, above) == (budget.status, []), (name, cost)


@pytest.mark.parametrize("name", TELLING)
def test_a_request_stays_within_its_budget(meter, name):
    check(meter, name)


@pytest.mark.slow
def test_every_request_stays_within_its_budget(meter):
    """In the order of `cases`, because some requests load what others then find in memory."""
    fit_probe(meter.url)
    for name in cases():
        check(meter, name)
