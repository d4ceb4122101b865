"""A function of yours behind `wrap_encoder`: served over REST, probed, and the target of a re-embedding."""

import shutil

import httpx
import numpy as np
import pytest
from rest_requests import as_text, ended, upload
from tiny_runs import nnclr

from nnclr_hub import load_encoder

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
    for running in serve(f"python:{file}:colors", file.parent / "store", source_folders=[str(file.parent)]):
        running.engines.get(f"python:{file}:layout")
        running.bench.index_folder("album", file.parent / "photos")
        yield running


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=120) as opened:
        yield opened


def test_rest_embeds_and_searches(client, file, image_files):
    own = load_encoder(f"python:{file}:colors")
    (model,) = [one for one in client.get("/v1/models").json()["data"] if one["fingerprint"] == own.fingerprint]
    assert model["dim"] == 6
    assert str(file.parent) not in str(model)
    answer = client.post("/api/v1/embed", files=upload(image_files[3:4]))
    assert answer.status_code == 200, answer.text
    (item,) = answer.json()["data"]
    np.testing.assert_allclose(item["embedding"], own.embed([image_files[3]])[0], atol=1e-5)
    answer = client.post("/api/v1/collections/album/search", json={"image": as_text(image_files[3]), "k": 3})
    assert answer.status_code == 200, answer.text
    best, *_ = answer.json()["matches"]
    assert best["score"] == pytest.approx(1, abs=1e-5)


def test_a_collection_moves_from_one_function_to_another_over_rest(client, server, file, image_files):
    own = load_encoder(f"python:{file}:layout")
    names = {one["fingerprint"]: one["id"] for one in client.get("/v1/models").json()["data"]}
    job = ended(client, client.post("/api/v1/collections/album/reembed", json={"model": names[own.fingerprint]}))
    assert job["state"] == "done", job
    assert (job["result"]["embedded"], job["result"]["left_out"]) == (60, [])
    collection = server.bench.collection("album")
    assert (collection.spec.fingerprint, collection.spec.dim) == (own.fingerprint, 192)


def test_a_probe_of_a_function_names_it_in_each_command(file, photos, image_files, tmp_path):
    model, probe = f"python:{file}:layout", tmp_path / "probe"
    code, _, err = nnclr("probe", "fit", photos, "--model", model, "--out", probe)
    assert code == 0, err
    code, shown, err = nnclr("probe", "predict", image_files[0], "--probe", probe, "--model", model)
    assert code == 0, err
    assert shown.splitlines()[1].split(",")[1] == image_files[0].parent.name
    code, _, err = nnclr("probe", "predict", image_files[0], "--probe", probe)
    assert code == 1, "a probe does not choose code to run"
    assert "--model" in err
    code, _, err = nnclr("probe", "predict", image_files[0], "--probe", probe, "--model", f"python:{file}:colors")
    assert code != 0, "another function"


def test_a_probe_is_fitted_on_a_collection_of_a_function_over_rest(client, image_files):
    body = {"name": "pets", "collection": "album", "field": "label"}
    job = ended(client, client.post("/api/v1/probes", json=body))
    assert job["state"] == "done", job
    (result,) = client.post("/api/v1/probes/pets/predict", files=upload(image_files[:1])).json()["results"]
    assert result["label"] == image_files[0].parent.name
