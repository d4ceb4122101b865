"""Probes over REST: fitted in the background, described, used, exported, deleted."""

import base64
import io
import json
import zipfile

import numpy as np
import pytest
from safetensors import safe_open

from nnclr_hub.probe.linear import fit_linear_probe
from nnclr_hub.probe.linear_probe import LinearProbe

PROBES = "/api/v1/probes"


def test_a_probe_of_a_collection_is_the_one_that_the_library_fits(server, client, pets):
    items = [item for item in server.bench.collection("album").scroll(limit=1000).items if "label" in item.metadata]
    assert len(items) == 60
    expected = fit_linear_probe(np.stack([item.vector for item in items]), [item.metadata["label"] for item in items])
    archive = zipfile.ZipFile(io.BytesIO(client.get(f"{PROBES}/pets/export").content))
    assert sorted(archive.namelist()) == ["card.json", "probe.json", "probe.safetensors"]
    found = LinearProbe.from_files(archive.read("probe.safetensors"), archive.read("probe.json"), "pets")
    assert found.classes == expected.classes == ("astronaut", "cat", "coffee")
    assert found.l2 == expected.l2
    np.testing.assert_allclose(found.weight, expected.weight, atol=1e-5)
    np.testing.assert_allclose(found.bias, expected.bias, atol=1e-5)
    assert found.fingerprint == server.engines.get().fingerprint


def test_an_exported_probe_is_read_from_a_folder(client, pets, tmp_path):
    zipfile.ZipFile(io.BytesIO(client.get(f"{PROBES}/pets/export").content)).extractall(tmp_path)
    assert LinearProbe.load(tmp_path).classes == ("astronaut", "cat", "coffee")
    alone = client.get(f"{PROBES}/pets/export?format=safetensors")
    assert alone.headers["content-disposition"] == 'attachment; filename="pets.safetensors"'
    (tmp_path / "alone.safetensors").write_bytes(alone.content)
    with safe_open(tmp_path / "alone.safetensors", "np") as file:
        told = json.loads(file.metadata()["probe"])
        np.testing.assert_array_equal(file.get_tensor("weight"), LinearProbe.load(tmp_path).weight)
    assert told["scores"] == client.get(f"{PROBES}/pets").json()["scores"]
    assert told["classes"] == ["astronaut", "cat", "coffee"]
    for kind in ("zip", "safetensors"):  # the same bytes every time
        answers = [client.get(f"{PROBES}/pets/export?format={kind}").content for _ in range(3)]
        assert len(set(answers)) == 1


def test_the_job_and_the_probe_say_how_it_does_on_rows_that_it_has_not_seen(client, pets):
    told = client.get(f"{PROBES}/pets").json()
    assert client.get(PROBES).json() == {"probes": [told]}
    assert told["rows"] == 60
    assert told["left_out"] == {"no label": 2}
    assert told["held_out"] == 12
    assert [(one["label"], one["rows"], one["held_out"]) for one in told["per_class"]] == [
        ("astronaut", 20, 4),
        ("cat", 20, 4),
        ("coffee", 20, 4),
    ]
    right = sum(one["score"] * one["held_out"] for one in told["per_class"])
    assert told["scores"]["top1"] == pytest.approx(right / 12)
    assert told["scores"]["top1"] > 0.6
    for name in ("rows", "left_out", "held_out", "scores", "per_class", "none"):
        assert pets["result"][name] == told[name]
    assert pets["done"] == pets["total"] > 0
    assert pets["created"] <= pets["started"] <= pets["ended"]


def test_items_vectors_and_images_are_labeled_alike(server, client, pets, pictures):
    path = pictures[25]
    data = path.read_bytes()
    id = f"{path.parent.name}-{path.stem}"
    vector = server.bench.collection("album").get([id])[0].vector
    probe = server.bench.predict("pets", vectors=vector[None] * 3, k=3)[0]
    assert not isinstance(probe, Exception)
    by_id = client.post(f"{PROBES}/pets/predict", json={"collection": "album", "ids": [id], "top": 3}).json()
    assert by_id["probe"] == "pets"
    assert by_id["results"][0]["id"] == id
    assert by_id["results"][0]["label"] == probe.label
    # three rows at once differ from one alone in float32's last places
    told = [(one["label"], pytest.approx(one["probability"], abs=1e-5)) for one in by_id["results"][0]["top"]]
    assert told == list(probe.top)
    assert sum(one["probability"] for one in by_id["results"][0]["top"]) == pytest.approx(1)
    encoded = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    for body in ({"vectors": [vector.tolist()]}, {"vectors": [encoded]}, {"images": [base64.b64encode(data).decode()]}):
        (result,) = client.post(f"{PROBES}/pets/predict", json={**body, "top": 3}).json()["results"]
        assert result["label"] == probe.label
        np.testing.assert_allclose(
            [one["probability"] for one in result["top"]], [value for _, value in probe.top], atol=1e-4
        )
    (result,) = client.post(f"{PROBES}/pets/predict", files=[("files", ("a.jpg", data))]).json()["results"]
    assert (result["name"], result["label"]) == ("a.jpg", probe.label)


def test_what_cannot_be_labeled_fails_alone(client, pets, pictures):
    files = [("files", ("broken.jpg", b"no image")), ("files", ("good.jpg", pictures[0].read_bytes()))]
    answer = client.post(f"{PROBES}/pets/predict", files=files, data={"top": "1"})
    assert answer.status_code == 200, answer.text
    broken, good = answer.json()["results"]
    assert broken["error"]["code"] in ("undecodable_image", "unsupported_image")
    assert "label" not in broken
    assert len(good["top"]) == 1
    body = {"collection": "album", "ids": ["nobody", "cat-03"]}
    missing, there = client.post(f"{PROBES}/pets/predict", json=body).json()["results"]
    assert missing["error"]["code"] == "item_not_found"
    assert there["label"]
    answer = client.post(f"{PROBES}/pets/predict", files=files[:1])
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["index"] == 0


def test_vectors_of_another_encoder_are_refused(client, pets):
    dim = client.get(f"{PROBES}/pets").json()["dim"]
    answer = client.post(f"{PROBES}/pets/predict", json={"vectors": [[1.0] * dim], "fingerprint": "another"})
    assert (answer.status_code, answer.json()["code"]) == (409, "fingerprint_mismatch")
    answer = client.post(f"{PROBES}/pets/predict", json={"vectors": [[1.0] * (dim + 1)]})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": ["a"]},
        {"collection": "album"},
        {"vectors": [[1.0], [1.0, 2.0]]},
        {"vectors": []},
        {"images": ["???"]},
        {"vectors": [[1.0]], "images": ["AAAA"]},
        {"vectors": [[1.0]], "top": 0},
        {"vectors": [[1.0]], "more": 1},
    ],
)
def test_a_prediction_that_makes_no_sense_is_refused(client, pets, body):
    answer = client.post(f"{PROBES}/pets/predict", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_too_many_images_and_unknown_names_are_refused(client, pets):
    assert client.post(f"{PROBES}/pets/predict", json={"images": ["AAAA"] * 65}).status_code == 413
    assert client.post(f"{PROBES}/none/predict", json={"vectors": [[1.0]]}).json()["code"] == "probe_not_found"
    answer = client.post(f"{PROBES}/pets/predict", json={"collection": "none", "ids": ["a"]})
    assert answer.json()["code"] == "collection_not_found"
    assert client.get(f"{PROBES}/none").status_code == 404
    assert client.get(f"{PROBES}/none/export").status_code == 404
    assert client.delete(f"{PROBES}/none").status_code == 404
