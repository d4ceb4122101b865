"""A read-only server never changes its store."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from labeling import fit_probe
from rest_requests import as_text, is_problem, upload
from rest_rows import Row
from typer.testing import CliRunner
from waiting import free_port

from nnclr_hub.cli.app import app as cli
from nnclr_hub.store import open_store
from nnclr_hub.store.base import Item
from nnclr_hub.store.records import Record
from nnclr_hub.workbench import Encoders, Workbench
from serving.access import AccessRules
from serving.jobs import JOB
from serving.keys import WRITE
from serving.openapi import document
from serving.routes import ROUTERS

ACCESS = AccessRules(ROUTERS)
WAITING = "0123456789abcd"
NAMES = {"name": "photos", "id": "x", "alias": "live", "number": "1", "values": "clusters", "key": "k"}


@pytest.fixture(scope="module")
def store(model, photos, tmp_path_factory) -> Path:
    """Make a store with a collection, a probe, and a queued job of another server."""
    folder = tmp_path_factory.mktemp("shown") / "store"
    with open_store(str(folder)) as opened:
        bench = Workbench(Encoders(str(model), device="cpu"), opened)
        bench.index_folder("photos", photos)
        fit_probe(bench, "things", "photos", "label")
        opened.alias("live", "photos")
        about = {"id": WAITING, "kind": "compact", "params": {"collection": "photos"}, "state": "queued"}
        opened.records.put(Record(JOB, WAITING, {**about, "created": 1.0}))
    return folder


@pytest.fixture(scope="module")
def server(model, store, serve):
    yield from serve(model, store, read_only=True)


def contents(folder: Path) -> dict[str, str]:
    """Return the hash of each file of a store, without the lock files of SQLite."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def writes() -> list[Row]:
    """Return all operations that need the write scope, and two unknown paths."""
    filled = [
        (method.upper(), re.sub(r"\{(\w+)\}", lambda found: NAMES[found[1]], path))
        for path, methods in document()["paths"].items()
        for method in methods
    ]
    requests = [one for one in (*filled, ("POST", "/v1/files"), ("PATCH", "/api/v2")) if ACCESS.of(*one).scope == WRITE]
    return [Row(" ".join(request), {}, 403, "read_only") for request in requests]


def test_every_write_is_refused_and_changes_nothing(client, store):
    before = contents(store)
    assert len(writes()) > 12
    for row in writes():
        row.check(client)
    assert contents(store) == before


def test_every_write_is_described_with_its_refusal():
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            described = "`read_only`" in operation["responses"]["403"]["description"]
            assert described == (ACCESS.of(method.upper(), path).scope == WRITE), (method, path)


def test_reads_work_as_usual(client, image_files):
    ready = client.get("/readyz").json()
    assert (ready["status"], ready["read_only"]) == ("ready", True)
    files = upload(image_files[:2])
    assert len(client.post("/api/v1/embed", files=files).json()["data"]) == 2
    assert client.post("/v1/embeddings", json={"model": "default", "input": as_text(image_files[0])}).status_code == 200
    found = client.post("/api/v1/collections/live/search", json={"image": as_text(image_files[0]), "k": 1}).json()
    assert found["matches"][0]["score"] == pytest.approx(1.0, abs=1e-5)
    items = [found["matches"][0]["id"]]
    predicted = client.post("/api/v1/probes/things/predict", files=files).json()["results"][0]
    by_id = client.post("/api/v1/probes/things/predict", json={"collection": "live", "ids": items}).json()["results"][0]
    assert predicted["label"] == by_id["label"] in {path.parent.name for path in image_files}


def test_a_job_of_another_server_is_listed_but_not_started(client):
    jobs = client.get("/api/v1/jobs").json()["jobs"]
    assert [(job["id"], job["state"]) for job in jobs] == [(WAITING, "queued")]
    assert client.get(f"/api/v1/jobs/{WAITING}").json()["state"] == "queued"
    is_problem(client.delete(f"/api/v1/jobs/{WAITING}"), 403, "read_only")


def test_commits_of_another_process_are_visible(client, store):
    with open_store(str(store)) as writer:
        collection = writer.get("photos")
        vector = np.full(collection.spec.dim, 3.0, np.float32)
        collection.upsert([Item("new", vector)])
        found = client.post("/api/v1/collections/photos/search", json={"vector": vector.tolist(), "k": 1}).json()
        assert found["matches"][0]["id"] == "new"
        collection.delete(["new"])


def test_the_command_reads_the_environment_variable(tmp_path, model):
    """A read-only server needs an existing store, and creates none."""
    asked = ["serve", "--store", str(tmp_path / "store"), "--model", str(model), "--port", str(free_port())]
    for flags, environment in ((["--read-only"], {}), ([], {"NNCLR_READ_ONLY": "1"})):
        said = CliRunner().invoke(cli, [*asked, *flags], env=environment)
        assert "not a store" in said.output
        assert not (tmp_path / "store").exists()
