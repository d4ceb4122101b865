"""A function of yours behind `wrap_encoder`: served over REST, probed, and the target of a re-embedding."""

import shutil
import time

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
        running.bench.index_folder("album", FolderRequest(file.parent / "photos", model=f"python:{file}:colors"))
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


@pytest.fixture
def left_jobs(tmp_path, photos):
    """Make a store whose queued jobs name a file of Python; return it and the file that running it would write."""
    evidence = tmp_path / "was_run"
    (tmp_path / "evil.py").write_text(f"open({str(evidence)!r}, 'w').close()\n{FILE}")
    source = f"python:{tmp_path / 'evil.py'}:colors"
    compared = {"collection": "album", "models": ["colors"], "field": "label"}
    fitted = {"name": "p", "replace": False}
    examples = [{"label": one, "image": as_text(next(photos.rglob("*.jpg")))} for one in "xy"]
    with open_store(str(tmp_path / "store")) as store:
        store.create("album", CollectionSpec(6)).upsert([Item("a", np.eye(6)[0], {"label": "x"})])
        records = JobRecords(store.records, keep=0)
        reembedded = {"collection": "album", "model": "x", "skip_missing": True}
        for kind, params, hidden in (
            ("reembed", reembedded, {"source": source}),
            ("comparison", compared, {"source": [source]}),
            ("probe_fit", fitted, {"source": source, "items": examples}),
        ):
            records.add(JobStatus(records.new_id(), kind, params, time.time()), hidden)
    return tmp_path / "store", evidence


def test_a_job_that_was_left_in_a_store_runs_no_file(left_jobs, serve, model):
    """The folder of a store may come from somebody else."""
    store, evidence = left_jobs
    for running in serve(model, store):
        with httpx.Client(base_url=running.url, timeout=120) as client:
            jobs = client.get("/api/v1/jobs").json()["jobs"]
            assert len(jobs) == 3
            for job in jobs:
                done = finished(client, f"/api/v1/jobs/{job['id']}")
                assert (done["state"], done["error"]["code"]) == ("failed", "model_files_missing"), done
    assert not evidence.exists()


def test_a_job_that_was_left_in_a_store_uses_the_function_of_the_server(file, photos, serve, tmp_path):
    own = f"python:{file}:colors"
    items = [{"label": path.parent.name, "image": as_text(path)} for path in sorted(photos.rglob("*.jpg"))]
    params = {"name": "p", "replace": False}
    with open_store(str(tmp_path / "store")) as store:
        records = JobRecords(store.records, keep=0)
        job = JobStatus(records.new_id(), "probe_fit", params, time.time())
        records.add(job, {"source": own, "items": items})
    for running in serve(own, tmp_path / "store"):
        with httpx.Client(base_url=running.url, timeout=120) as client:
            done = finished(client, f"/api/v1/jobs/{job.id}")
            assert done["state"] == "done", done
