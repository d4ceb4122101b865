"""Search over REST: by id, image, box, vector and examples."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image
from rest_requests import as_text, ended, is_problem, upload


def test_added_images_are_found_as_neighbors(client, collection, image_files, encoder):
    notes = [{"id": f"p{i}", "metadata": {"label": path.parent.name}} for i, path in enumerate(image_files[:20])]
    files = [*upload(image_files[:20]), ("files", ("bad.jpg", b"garbage", "image/jpeg"))]
    response = client.post(f"{collection}/items", files=files, data={"items": json.dumps([*notes, {"id": "bad"}])})
    assert response.status_code == 200
    results = response.json()["results"]
    assert [one.get("id") for one in results] == [f"p{i}" for i in range(20)] + [None]
    assert results[20]["error"]["code"] == "unsupported_image"
    about = client.get(collection).json()
    assert (about["count"], about["dim"], about["fingerprint"]) == (20, 32, encoder.fingerprint)

    want = [f"p{i}" for i in np.argsort(-(encoder.embed(image_files[:20]) @ encoder.embed(image_files[3:4])[0]))[:5]]
    image = image_files[3].read_bytes()
    text = base64.b64encode(image).decode()
    vector = encoder.embed(image_files[3:4])[0]
    searches = [
        {"json": {"image": text, "k": 5}},
        {"json": {"image": f"data:image/jpeg;base64,{text}", "k": 5}},
        {"json": {"vector": vector.tolist(), "k": 5}},
        {"json": {"vector": base64.b64encode(vector.tobytes()).decode(), "k": 5}},
        {"files": {"image": ("q.jpg", image, "image/jpeg"), "query": (None, '{"k": 5}')}},
        {
            "files": {
                "image": ("q.jpg", image, "image/jpeg"),
                "query": ("query.json", b'{"k": 5}', "application/json"),
            }
        },
    ]
    for search in searches:
        answer = client.post(f"{collection}/search", **search)
        assert [match["id"] for match in answer.json()["matches"]] == want, search.keys()
    by_id = client.post(f"{collection}/search", json={"id": "p3", "k": 4}).json()["matches"]
    assert [match["id"] for match in by_id] == [id for id in want if id != "p3"][:4]

    where = {"must": [{"key": "label", "match": "astronaut"}]}
    found = client.post(f"{collection}/search", json={"id": "p3", "k": 50, "where": where, "with_vector": True}).json()
    assert {match["metadata"]["label"] for match in found["matches"]} == {"astronaut"}
    assert len(found["matches"][0]["vector"]) == 32
    assert client.post(f"{collection}/search", json={"id": "p3", "score_threshold": 2}).json() == {"matches": []}

    thumbnail = client.get(f"{collection}/items/p3/thumbnail")
    assert thumbnail.headers["content-type"] == "image/jpeg"
    assert max(Image.open(io.BytesIO(thumbnail.content)).size) <= 256

    assert client.delete(f"{collection}/items/p3").status_code == 204
    after = client.post(f"{collection}/search", json={"vector": vector.tolist(), "k": 5}).json()["matches"]
    assert "p3" not in [match["id"] for match in after]
    assert ended(client, client.post(f"{collection}/verify"))["result"]["ok"]
    assert client.post(f"{collection}/snapshot").status_code == 204


def test_a_box_searches_with_part_of_an_image(client, collection, image_files, encoder):
    """The crop is the one that Pillow cuts."""
    image = Image.open(image_files[0]).convert("RGB")
    parts = [image.crop((0, 0, 32, 32)), image.crop((32, 32, 64, 64))]
    vectors = encoder.embed(parts)
    items = [{"id": f"part{i}", "vector": vector.tolist()} for i, vector in enumerate(vectors)]
    assert client.put(f"{collection}/items", json=items).json()["stored"] == 2
    text = base64.b64encode(image_files[0].read_bytes()).decode()
    for i, box in enumerate(([0, 0, 32, 32], [32, 32, 64, 64])):
        best = client.post(f"{collection}/search", json={"image": text, "box": box, "k": 1}).json()["matches"][0]
        assert best["id"] == f"part{i}"
        assert best["score"] == pytest.approx(1, abs=1e-4)


@pytest.fixture
def gallery(client, collection, image_files, encoder) -> tuple[str, np.ndarray]:
    """Twenty images by their vectors, four albums; the collection's path, and the vectors."""
    vectors = encoder.embed(image_files[::3])
    items = [
        {"id": f"p{i}", "vector": vector.tolist(), "metadata": {"album": i % 4}} for i, vector in enumerate(vectors)
    ]
    assert client.put(f"{collection}/items", json=items).status_code == 200
    return collection, vectors


def ids(answer) -> list[str]:
    return [match["id"] for match in answer["matches"]]


def ranked(vectors: np.ndarray, query: np.ndarray, without: tuple[int, ...] = ()) -> list[str]:
    return [f"p{i}" for i in np.argsort(-(vectors @ query)) if i not in without]


def test_positive_and_negative_examples_move_the_query(client, gallery, image_files):
    """The query is p + (p - n) of the means, and examples by id are never matches."""
    path, vectors = gallery
    query = 2 * vectors[[0, 1]].mean(axis=0) - vectors[7]
    by_id = {"positive": [{"id": "p0"}, {"id": "p1"}], "negative": [{"id": "p7"}], "k": 5}
    assert ids(client.post(f"{path}/search", json=by_id).json()) == ranked(vectors, query, (0, 1, 7))[:5]
    mixed = {
        "positive": [{"image": as_text(image_files[0])}, {"vector": vectors[1].tolist()}],
        "negative": [{"vector": base64.b64encode(vectors[7].tobytes()).decode()}],
        "k": 5,
    }
    assert ids(client.post(f"{path}/search", json=mixed).json()) == ranked(vectors, query)[:5]
    query = 2 * vectors[0] - vectors[7]
    away = {"id": "p0", "negative": [{"id": "p7"}], "k": 5}
    assert ids(client.post(f"{path}/search", json=away).json()) == ranked(vectors, query, (0, 7))[:5]


def test_a_batch_has_a_result_for_each_search(client, gallery, image_files):
    path, vectors = gallery
    good = [
        {"id": "p3"},
        {"vector": vectors[1].tolist()},
        {"vector": vectors[2].tolist()},
        {"image": as_text(image_files[0]), "k": 3},
        {"image": as_text(image_files[3]), "box": [0, 0, 32, 32]},
        {"positive": [{"id": "p4"}], "negative": [{"image": as_text(image_files[9])}]},
    ]
    bad = [{}, {"id": "nobody"}, {"vector": [1.0]}, {"image": "YQ=="}, {"image": "***"}, {"id": "p1", "k": 0}]
    queries = [query for pair in zip(good, bad, strict=True) for query in pair]
    results = client.post(f"{path}/search/batch", json={"queries": queries}).json()["results"]
    for query, one in zip(good, results[::2], strict=True):
        alone = client.post(f"{path}/search", json=query).json()
        assert ids(one) == ids(alone)
        scores = [[match["score"] for match in answer["matches"]] for answer in (one, alone)]
        np.testing.assert_allclose(*scores, atol=1e-6)
    codes = [one["error"]["code"] for one in results[1::2]]
    assert codes == [client.post(f"{path}/search", json=query).json()["code"] for query in bad]
    assert set(codes) == {"invalid_request", "item_not_found", "unsupported_image"}


def test_a_collection_that_got_another_model_is_searched_with_it(client, server, collection, image_files, make_model):
    """A search embeds images with the model that the collection had at the last one, and looks afterwards."""
    query = {"image": as_text(image_files[0]), "k": 1}
    for model in ("default", server.engines.get(str(make_model(seed=1))).source):
        client.delete(collection)
        client.put(collection, json={"model": model})
        client.post(f"{collection}/items", files=upload(image_files[:3]), data={"items": '[{"id": "a"},{},{}]'})
        for _ in range(2):  # the second search remembers the model
            [match] = client.post(f"{collection}/search", json=query).json()["matches"]
            assert (match["id"], match["score"]) == ("a", pytest.approx(1, abs=1e-4))
    client.delete(collection)
    is_problem(client.post(f"{collection}/search", json=query), 404, "collection_not_found")
