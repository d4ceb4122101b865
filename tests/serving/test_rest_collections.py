"""Collections over REST."""

import base64
from concurrent.futures import ThreadPoolExecutor

from rest_requests import is_problem, upload


def test_collections_are_created_once_and_described(client):
    path = "/api/v1/collections/plain"
    assert client.put(path, json={"dim": 4, "metric": "l2"}).status_code == 201
    assert client.put(path, json={"dim": 4, "metric": "l2"}).status_code == 200
    is_problem(client.put(path, json={"dim": 5}), 409, "collection_exists")
    assert "plain" in [one["name"] for one in client.get("/api/v1/collections").json()["collections"]]
    assert client.delete(path).status_code == 204
    is_problem(client.get(path), 404, "collection_not_found")


def test_concurrent_equal_requests_create_one_collection(client):
    """As one after the other: one makes it, the others find it there."""
    with ThreadPoolExecutor(16) as pool:
        for number in range(4):
            path = f"/api/v1/collections/many-{number}"
            codes = [
                answer.status_code for answer in pool.map(lambda path: client.put(path, json={"dim": 4}), [path] * 16)
            ]
            assert sorted(codes) == [200] * 15 + [201]
            client.delete(path)


def test_a_collection_without_its_encoder_is_a_conflict(client, server, image_files):
    """Images cannot be searched in it, and the error names the next step."""
    from nnclr_hub.store.base import CollectionSpec

    server.bench.store.create("alien", CollectionSpec(32, fingerprint="f" * 32, model="elsewhere"))
    text = base64.b64encode(image_files[0].read_bytes()).decode()
    for response in (
        client.post("/api/v1/collections/alien/search", json={"image": text}),
        client.post("/api/v1/collections/alien/items", files=upload(image_files[:1])),
    ):
        said = is_problem(response, 409, "fingerprint_mismatch")
        assert "elsewhere" in said
        assert "nnclr store reembed alien" in said
    server.bench.store.drop("alien")


def test_a_collection_of_another_encoder_is_a_conflict(client, server, image_files):
    from nnclr_hub.store.base import CollectionSpec

    name = "foreign"
    server.bench.store.create(name, CollectionSpec(32, fingerprint="f" * 32, model=server.engines.default))
    text = base64.b64encode(image_files[0].read_bytes()).decode()
    response = client.post(f"/api/v1/collections/{name}/search", json={"image": text})
    assert "nnclr store reembed" in is_problem(response, 409, "fingerprint_mismatch")
    response = client.post(f"/api/v1/collections/{name}/items", files=upload(image_files[:1]))
    is_problem(response, 409, "fingerprint_mismatch")
    server.bench.store.drop(name)
