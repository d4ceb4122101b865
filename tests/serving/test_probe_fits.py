"""Fitting probes over REST: of a collection, of images that come with the request, of vectors."""

import base64

import numpy as np
import pytest
from rest_requests import ended

PROBES = "/api/v1/probes"


def test_an_existing_probe_is_replaced_only_if_requested(client, pets, photos_in):
    body = {"name": "pets", "collection": photos_in, "field": "label"}
    answer = client.post(PROBES, json=body)
    assert (answer.status_code, answer.json()["code"]) == (409, "probe_exists")
    before = client.get(f"{PROBES}/pets").json()
    job = ended(client, client.post(PROBES, json={**body, "replace": True, "l2": before["l2"]}))
    assert job["state"] == "done"
    after = client.get(f"{PROBES}/pets").json()
    assert after["created"] > before["created"]


def test_two_fits_of_one_name_at_once_keep_the_first(client, photos_in):
    body = {"name": "twice", "collection": photos_in, "field": "label"}
    answers = [client.post(PROBES, json={**body, "l2": l2}) for l2 in (1.0, 2.0)]
    if answers[1].status_code == 409:  # the first was quick
        answers.pop()
    states = [ended(client, answer) for answer in answers]
    assert states[0]["state"] == "done"
    for late in states[1:]:
        assert (late["state"], late["error"]["code"], late["error"]["status"]) == ("failed", "probe_exists", 409)
    assert client.delete(f"{PROBES}/twice").status_code == 204


def test_an_unknown_field_is_refused_with_the_existing_ones(client, photos_in):
    answer = client.post(PROBES, json={"name": "x", "collection": photos_in, "field": "lable"})
    assert answer.status_code == 422
    assert "label" in answer.json()["detail"]
    assert "pixel_sha256" in answer.json()["detail"]
    only = {"must": [{"key": "label", "match": "cat"}]}
    job = ended(
        client, client.post(PROBES, json={"name": "x", "collection": photos_in, "field": "label", "where": only})
    )
    assert job["state"] == "failed"
    assert "cat" in job["error"]["detail"]
    job = ended(client, client.post(PROBES, json={"name": "x", "collection": photos_in, "field": "n"}))
    assert job["error"]["code"] == "invalid_request"
    assert client.get(f"{PROBES}/x").status_code == 404


def test_a_probe_of_images_in_the_request(client, image_files):
    items = [
        {"image": base64.b64encode(path.read_bytes()).decode(), "label": path.parent.name} for path in image_files[::3]
    ]
    items.append({"image": base64.b64encode(b"no image").decode(), "label": "cat"})
    job = ended(client, client.post(PROBES, json={"name": "mine", "items": items}))
    assert job["state"] == "done", job
    assert job["params"]["items"] == 21
    assert [error["index"] for error in job["result"]["errors"]] == [20]
    assert job["result"]["left_out"] == {"unreadable": 1}
    probe = client.get(f"{PROBES}/mine").json()
    assert probe["model"]
    answer = client.post(f"{PROBES}/mine/predict", files=[("files", ("a.jpg", image_files[0].read_bytes()))])
    assert answer.json()["results"][0]["label"] == "astronaut"
    client.delete(f"{PROBES}/mine")


def test_the_images_of_a_fit_are_logged(client, server):
    most = server.app.state.settings.max_images
    item = {"image": base64.b64encode(b"x").decode(), "label": "cat"}
    answer = client.post(PROBES, json={"name": "many", "items": [item] * (most + 1)})
    assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")
    assert str(most) in answer.json()["detail"]


def test_a_probe_of_vectors_with_several_labels_each(client):
    rng = np.random.default_rng(0)
    truth = rng.random((80, 3)) < 0.4
    vectors = truth @ np.eye(3, 6) * 4 + rng.normal(0, 0.3, (80, 6)) + 0.5
    names = ["red", "round", "small"]
    items = [
        {"vector": [float(x) for x in vector], "label": [name for name, there in zip(names, row, strict=True) if there]}
        for vector, row in zip(vectors, truth, strict=True)
    ]
    job = ended(client, client.post(PROBES, json={"name": "traits", "items": items}))
    assert job["state"] == "done", job
    probe = client.get(f"{PROBES}/traits").json()
    assert (probe["several"], probe["classes"], probe["model"]) == (True, names, "")
    assert probe["scores"]["map11"] > 0.8
    assert [one["rows"] for one in probe["per_class"]] == truth.sum(axis=0).tolist()
    answer = client.post(f"{PROBES}/traits/predict", json={"vectors": [one["vector"] for one in items]}).json()
    found = [set(entry["labels"]) for entry in answer["results"]]
    right = sum(one == set(item["label"]) for one, item in zip(found, items, strict=True))
    assert right > 70
    client.delete(f"{PROBES}/traits")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x"},
        {"name": "x", "collection": "album"},
        {"name": "x y", "collection": "album", "field": "label"},
        {"name": "x", "items": [{"vector": [1.0], "label": "a"}]},
        {"name": "x", "items": [{"label": "a"}, {"label": "b"}]},
        {"name": "x", "items": [{"vector": [1.0], "label": 1.5}, {"vector": [1.0], "label": "b"}]},
        {"name": "x", "collection": "album", "field": "label", "l2": -1},
        {"name": "x", "collection": "album", "field": "label", "threshold": 2},
        {"name": "x", "collection": "album", "field": "label", "model": "y"},
        {"name": "x", "collection": "album", "field": "label", "where": {"maybe": []}},
    ],
)
def test_an_invalid_fit_is_refused(client, photos_in, body):
    answer = client.post(PROBES, json=body)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_unknown_names_are_refused_before_a_job_is_created(client, photos_in):
    answer = client.post(PROBES, json={"name": "x", "collection": "none", "field": "label"})
    assert (answer.status_code, answer.json()["code"]) == (404, "collection_not_found")
    items = [{"vector": [1.0, 0.0], "label": "a"}, {"vector": [0.0, 1.0], "label": "b"}]
    answer = client.post(PROBES, json={"name": "x", "items": items, "model": "no-such-model"})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_model")
