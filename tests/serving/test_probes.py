"""Probes over REST: fitted in the background, described, used, exported, deleted."""

import base64
import io
import json
import zipfile

import httpx
import numpy as np
import pytest
from rest_requests import ended, is_problem
from safetensors import safe_open

from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.linear_probe import LinearProbe
from nnclr_hub.store.base import Item

PROBES = "/api/v1/probes"


@pytest.fixture(scope="module")
def pets(server):
    """Fit a probe on photos with their folders as labels, next to which are two items without a label."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.put("/api/v1/collections/album", json={})
        ended(client, client.post("/api/v1/collections/album/index", json={"folder": "summer"}))
        album = server.bench.collection("album")
        album.upsert([Item(f"bare-{i}", item.vector) for i, item in enumerate(album.scroll(limit=2).items)])
        job = ended(client, client.post(PROBES, json={"name": "pets", "collection": "album", "field": "label"}))
        assert job["state"] == "done", job
        yield job
        for path in (f"{PROBES}/pets", "/api/v1/collections/album"):
            assert client.delete(path).status_code == 204


def test_an_exported_probe_equals_that_of_the_library(server, client, pets, tmp_path):
    items = [item for item in server.bench.collection("album").scroll(limit=1000).items if "label" in item.metadata]
    assert len(items) == 60
    expected = fit_linear_probe(np.stack([item.vector for item in items]), [item.metadata["label"] for item in items])
    archive = zipfile.ZipFile(io.BytesIO(client.get(f"{PROBES}/pets/export").content))
    assert sorted(archive.namelist()) == ["card.json", "probe.json", "probe.safetensors"]
    archive.extractall(tmp_path)
    found = LinearProbe.load(tmp_path)
    assert found.classes == expected.classes == ("astronaut", "cat", "coffee")
    assert found.l2 == expected.l2
    np.testing.assert_allclose(found.weight, expected.weight, atol=1e-5)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-5)
    assert found.fingerprint == server.engines.get().fingerprint
    alone = client.get(f"{PROBES}/pets/export?format=safetensors")
    assert alone.headers["content-disposition"] == 'attachment; filename="pets.safetensors"'
    (tmp_path / "alone.safetensors").write_bytes(alone.content)
    with safe_open(tmp_path / "alone.safetensors", "np") as file:
        body = json.loads(file.metadata()["probe"])
        np.testing.assert_array_equal(file.get_tensor("weight"), found.weight)
    about = client.get(f"{PROBES}/pets").json()
    assert body["scores"] == about["scores"]
    assert [(one["label"], one["rows"], one["held_out"]) for one in about["per_class"]] == [
        (label, 20, 4) for label in expected.classes
    ]
    assert {name: pets["result"][name] for name in ("rows", "left_out", "scores")} == {
        name: about[name] for name in ("rows", "left_out", "scores")
    }
    for kind in ("zip", "safetensors"):  # the same bytes every time
        assert len({client.get(f"{PROBES}/pets/export?format={kind}").content for _ in range(3)}) == 1


def test_a_probe_is_not_replaced_unasked(client, pets):
    again = client.post(PROBES, json={"name": "pets", "collection": "album", "field": "label"})
    is_problem(again, 409, "probe_exists")


def test_items_vectors_and_images_get_the_same_labels(server, client, pets, image_files):
    data, name = image_files[25].read_bytes(), "/".join(image_files[25].parts[-2:])
    [item] = server.bench.collection("album").scroll(where={"must": [{"key": "path", "match": name}]}).items
    id, vector = item.id, item.vector
    probe = server.bench.predict("pets", vectors=vector[None] * 3, k=3)[0]
    assert not isinstance(probe, Exception)
    by_id = client.post(f"{PROBES}/pets/predict", json={"collection": "album", "ids": [id], "top": 3}).json()
    assert by_id["probe"] == "pets"
    assert by_id["results"][0]["id"] == id
    assert by_id["results"][0]["label"] == probe.label
    # three rows at once differ from one alone in float32's last places
    body = [(one["label"], pytest.approx(one["probability"], abs=1e-5)) for one in by_id["results"][0]["top"]]
    assert body == list(probe.top)
    assert sum(one["probability"] for one in by_id["results"][0]["top"]) == pytest.approx(1)
    encoded = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    for body in ({"vectors": [vector.tolist()]}, {"vectors": [encoded]}, {"images": [base64.b64encode(data).decode()]}):
        (result,) = client.post(f"{PROBES}/pets/predict", json={**body, "top": 3}).json()["results"]
        assert result["label"] == probe.label
        np.testing.assert_allclose(
            [one["probability"] for one in result["top"]], [value for _, value in probe.top], atol=1e-4
        )
    broken, good = ("files", ("broken.jpg", b"no image")), ("files", ("a.jpg", data))
    first, second = client.post(f"{PROBES}/pets/predict", files=[broken, good], data={"top": "1"}).json()["results"]
    assert (first["error"]["code"], "label" in first) == ("unsupported_image", False)
    assert (second["name"], second["label"], len(second["top"])) == ("a.jpg", probe.label, 1)
    refused = client.post(f"{PROBES}/pets/predict", files=[broken])
    is_problem(refused, 422, "unsupported_image")
    assert refused.json()["errors"][0]["index"] == 0


def test_vectors_of_another_encoder_are_refused(client, pets):
    dim = client.get(f"{PROBES}/pets").json()["dim"]
    answer = client.post(f"{PROBES}/pets/predict", json={"vectors": [[1.0] * dim], "fingerprint": "another"})
    assert (answer.status_code, answer.json()["code"]) == (409, "fingerprint_mismatch")
    answer = client.post(f"{PROBES}/pets/predict", json={"vectors": [[1.0] * (dim + 1)]})
    assert answer.status_code == 422


def test_a_vector_far_from_all_rows_has_no_label(client):
    items = [{"vector": [1.0, 0.01 * n, float(n % 2)], "label": "ab"[n % 2]} for n in range(40)]
    job = ended(client, client.post(PROBES, json={"name": "near", "items": items, "l2": 0.01, "reject_far": 0.1}))
    assert job["state"] == "done", job
    predicted = client.post(f"{PROBES}/near/predict", json={"vectors": [items[3]["vector"], [-1.0, 0.0, -9.0]]}).json()
    assert [one.get("label", "none") for one in predicted["results"]] == ["b", "none"]
    client.delete(f"{PROBES}/near")


def test_a_probe_of_vectors_with_several_labels_each(client):
    rng = np.random.default_rng(0)
    names, truth = ["red", "round", "small"], rng.random((80, 3)) < 0.4
    vectors = truth @ np.eye(3, 6) * 4 + rng.normal(0, 0.3, (80, 6)) + 0.5
    labels = [[names[i] for i in np.flatnonzero(row)] for row in truth]
    items = [{"vector": vector.tolist(), "label": label} for vector, label in zip(vectors, labels, strict=True)]
    assert ended(client, client.post(PROBES, json={"name": "traits", "items": items}))["state"] == "done"
    probe = client.get(f"{PROBES}/traits").json()
    assert (probe["several"], probe["classes"], probe["model"]) == (True, names, "")
    assert probe["scores"]["map11"] > 0.8
    answer = client.post(f"{PROBES}/traits/predict", json={"vectors": vectors.tolist()}).json()
    found = [sorted(entry["labels"]) for entry in answer["results"]]
    assert sum(one == label for one, label in zip(found, labels, strict=True)) > 70
    client.delete(f"{PROBES}/traits")
