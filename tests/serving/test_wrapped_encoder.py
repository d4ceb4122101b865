"""A function of yours behind `wrap_encoder`: served over REST, probed, and the target of a re-embedding."""

import shutil
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from rest_requests import as_text, finished, upload

from nnclr_hub import load_encoder, open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench import FolderRequest
from serving.jobs import JobRecords, JobStatus

FILE = """
import numpy as np
import torch
from nnclr_hub import wrap_encoder

def small(image):
    return np.asarray(image.resize((8, 8)), np.float32).transpose(2, 0, 1) / 255

def means(x):
    return torch.cat([x.mean((2, 3)), x.std((2, 3))], dim=1)

def pixels(x):
    return x.flatten(1).numpy() - 0.5

def colors():
    return wrap_encoder(means, small, "means", 6)

def layout():
    return wrap_encoder(pixels, small, "pixels", 192)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("mine") / "mine.py"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def server(file, photos, serve):
    shutil.copytree(photos, file.parent / "photos")
    for running in serve(f"python:{file}:layout", file.parent / "store", source_folders=[str(file.parent)]):
        running.bench.index_folder("album", FolderRequest(file.parent / "photos"))
        yield running


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=120) as opened:
        yield opened


def test_rest_embeds_and_searches(client, file, image_files):
    own = load_encoder(f"python:{file}:layout")
    (model,) = [one for one in client.get("/v1/models").json()["data"] if one["fingerprint"] == own.fingerprint]
    assert model.get("preprocessing") is None, "nobody knows what the transform does"
    assert model["dim"] == 192
    assert str(file.parent) not in str(model)
    answer = client.post("/api/v1/embed", files=upload(image_files[3:4]))
    assert answer.status_code == 200, answer.text
    (item,) = answer.json()["data"]
    np.testing.assert_allclose(item["embedding"], own.embed([image_files[3]])[0], atol=1e-5)
    answer = client.post("/api/v1/collections/album/search", json={"image": as_text(image_files[3]), "k": 3})
    assert answer.status_code == 200, answer.text
    best, *_ = answer.json()["matches"]
    assert best["score"] == pytest.approx(1, abs=1e-5)


def ended_jobs(serve, model, folder: Path, *jobs: tuple[str, dict, dict]) -> list[dict]:
    """Leave queued jobs in a store, which may come from somebody else; return them when a server has ended them."""
    with open_store(str(folder)) as store:
        store.create("album", CollectionSpec(6)).upsert([Item("a", np.eye(6)[0], {"label": "x"})])
        records = JobRecords(store.records, keep=0)
        left = [(JobStatus(records.new_id(), kind, params, time.time()), hidden) for kind, params, hidden in jobs]
        for job, hidden in left:
            records.add(job, hidden)
    found = []
    for running in serve(model, folder):
        with httpx.Client(base_url=running.url, timeout=120) as client:
            found += [finished(client, f"/api/v1/jobs/{job.id}") for job, _ in left]
    return found


FITTED = {"name": "p", "replace": False}


def test_a_job_that_was_left_in_a_store_runs_no_file(tmp_path, photos, serve, model):
    evidence = tmp_path / "was_run"
    (tmp_path / "evil.py").write_text(f"open({str(evidence)!r}, 'w').close()\n{FILE}")
    source = f"python:{tmp_path / 'evil.py'}:colors"
    examples = [{"label": one, "image": as_text(next(photos.rglob("*.jpg")))} for one in "xy"]
    jobs = (
        ("reembed", {"collection": "album", "model": "x", "skip_missing": True}, {"source": source}),
        ("comparison", {"collection": "album", "models": ["colors"], "field": "label"}, {"source": [source]}),
        ("probe_fit", FITTED, {"source": source, "items": examples}),
    )
    for job in ended_jobs(serve, model, tmp_path / "store", *jobs):
        assert (job["state"], job["error"]["code"]) == ("failed", "model_files_missing"), job
    assert not evidence.exists()


def test_a_job_that_was_left_in_a_store_uses_the_function_of_the_server(file, photos, serve, tmp_path):
    own = f"python:{file}:colors"
    items = [{"label": path.parent.name, "image": as_text(path)} for path in sorted(photos.rglob("*.jpg"))]
    [job] = ended_jobs(serve, own, tmp_path / "store", ("probe_fit", FITTED, {"source": own, "items": items}))
    assert job["state"] == "done", job
