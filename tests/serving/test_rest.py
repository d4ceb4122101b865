"""REST against a running server: what it answers, and how it says no."""

import base64
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from openai import OpenAI
from PIL import Image

from nnclr_hub import load_encoder


@pytest.fixture(scope="module")
def encoder(model):
    return load_encoder(model, device="cpu")


def upload(paths):
    return [("files", (path.name, path.read_bytes(), "image/jpeg")) for path in paths]


def is_problem(response: httpx.Response, status: int, code: str) -> str:
    """Holds the answer to RFC 9457 and returns its sentence."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert {"type", "title", "status", "detail", "instance", "code"} <= body.keys()
    assert (body["status"], body["code"]) == (status, code)
    assert "Traceback" not in body["detail"]
    return body["detail"]


# ---- health and models


def test_health_ready_and_models(client, model):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    names = [entry["id"] for entry in client.get("/v1/models").json()["data"]]
    assert names[0] == model.name
    assert client.get(f"/v1/models/{names[0]}").json()["dim"] == 32
    assert client.get("/v1/models/unknown").json()["error"]["code"] == "unknown_model"


# ---- embeddings


def test_the_official_openai_client_gets_our_vectors(server, model, pictures, encoder):
    """Its default asks for base64 and decodes it."""
    openai = OpenAI(api_key="none", base_url=f"{server.url}/v1")
    texts = [base64.b64encode(path.read_bytes()).decode() for path in pictures[:3]]
    texts[1] = f"data:image/jpeg;base64,{texts[1]}"
    want = encoder.embed(pictures[:3])
    for extra in ({}, {"encoding_format": "float"}):
        answer = openai.embeddings.create(model=str(model), input=texts, extra_body={"modality": "image"}, **extra)
        np.testing.assert_allclose([entry.embedding for entry in answer.data], want, atol=1e-5)
        assert answer.usage.total_tokens == 3


@pytest.mark.parametrize(
    ("change", "status", "part"),
    [
        ({"input": [base64.b64encode(b"garbage").decode()]}, 422, "input[0]"),
        ({"input": ["***"]}, 422, "input[0]"),
        ({"input": "https://example.com/x.jpg"}, 422, "web address"),
        ({"input": []}, 422, "empty"),
        ({"model": "other"}, 404, "has no model"),
        ({"dimensions": 7}, 422, "has 32"),
        ({"modality": "audio"}, 422, "modality"),
        ({"input": ["YQ=="] * 65}, 413, "at most 64"),
    ],
)
def test_embeddings_refusals_wear_openais_envelope(client, model, pictures, change, status, part):
    good = base64.b64encode(pictures[0].read_bytes()).decode()
    response = client.post("/v1/embeddings", json={"model": str(model), "input": good} | change)
    assert response.status_code == status
    error = response.json()["error"]
    assert part in error["message"]
    assert {"message", "type", "param", "code"} == error.keys()


def test_embed_answers_each_file_for_itself(client, pictures, encoder):
    files = [*upload(pictures[:2]), ("files", ("bad.jpg", b"garbage", "image/jpeg"))]
    response = client.post("/api/v1/embed", files=files)
    assert response.status_code == 200
    body = response.json()
    assert (body["dim"], len(body["data"])) == (32, 3)
    np.testing.assert_allclose(
        [entry["embedding"] for entry in body["data"][:2]], encoder.embed(pictures[:2]), atol=1e-5
    )
    assert body["data"][2]["error"]["code"] == "unsupported_image"
    assert body["data"][2]["name"] == "bad.jpg"


def test_embed_gives_an_array_on_request(client, pictures, encoder):
    response = client.post("/api/v1/embed", files=upload(pictures[:5]), headers={"Accept": "application/x-npy"})
    np.testing.assert_allclose(np.load(io.BytesIO(response.content)), encoder.embed(pictures[:5]), atol=1e-5)
    mixed = [*upload(pictures[:1]), ("files", ("bad.jpg", b"garbage", "image/jpeg"))]
    is_problem(
        client.post("/api/v1/embed", files=mixed, headers={"Accept": "application/x-npy"}), 422, "undecodable_image"
    )


def test_a_full_batch_of_garbage_is_refused_item_by_item_and_harms_no_other(client, pictures, encoder):
    """64 files of noise, while another client asks for a good picture again and again."""
    rng = np.random.default_rng(0)
    garbage = [("files", (f"{i}.jpg", rng.bytes(3000), "image/jpeg")) for i in range(64)]
    want = encoder.embed(pictures[:1])[0]
    good: list[float] = []
    stop = threading.Event()

    def ask():
        with httpx.Client(base_url=str(client.base_url), timeout=30) as other:
            while not stop.is_set():
                response = other.post("/api/v1/embed", files=upload(pictures[:1]))
                assert response.status_code == 200
                good.append(float(np.abs(np.array(response.json()["data"][0]["embedding"]) - want).max()))

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(5):
        response = client.post("/api/v1/embed", files=garbage)
        assert "64 of 64" in is_problem(response, 422, "undecodable_image")
        assert len(response.json()["errors"]) == 64
    stop.set()
    thread.join()
    assert good
    assert max(good) < 1e-5
    assert client.get("/readyz").status_code == 200


def test_concurrent_requests_each_get_their_own_vectors(client, pictures, encoder):
    want = encoder.embed(pictures)

    def ask(i):
        answer = client.post("/api/v1/embed", files=upload([pictures[i]]))
        return np.array(answer.json()["data"][0]["embedding"])

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(ask, range(len(pictures))))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_what_is_too_much_is_refused_while_it_streams(client):
    is_problem(
        client.post("/api/v1/embed", files=[("files", ("a.jpg", b"x", "image/jpeg"))] * 65), 413, "request_too_large"
    )
    big = {"files": ("big.jpg", bytes(21_000_000), "image/jpeg")}
    is_problem(client.post("/api/v1/embed", files=big), 413, "request_too_large")

    def endless():  # without a Content-Length, it has to be counted
        yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="x.jpg"\r\n\r\n'
        for _ in range(400):
            yield bytes(100_000)

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    try:
        response = client.post("/api/v1/embed", content=endless(), headers=headers)
    except (httpx.WriteError, httpx.RemoteProtocolError):
        pass  # the server closed the door in the middle, as it may
    else:
        is_problem(response, 413, "request_too_large")
    assert client.get("/healthz").status_code == 200


# ---- collections and items


def test_pictures_go_in_and_come_back_as_neighbours(client, collection, pictures, encoder):
    notes = [{"id": f"p{i}", "metadata": {"label": path.parent.name}} for i, path in enumerate(pictures[:20])]
    files = [*upload(pictures[:20]), ("files", ("bad.jpg", b"garbage", "image/jpeg"))]
    response = client.post(f"{collection}/items", files=files, data={"items": json.dumps([*notes, {"id": "bad"}])})
    assert response.status_code == 200
    results = response.json()["results"]
    assert [one.get("id") for one in results] == [f"p{i}" for i in range(20)] + [None]
    assert results[20]["error"]["code"] == "unsupported_image"
    about = client.get(collection).json()
    assert (about["count"], about["dim"], about["fingerprint"]) == (20, 32, encoder.fingerprint)

    want = [f"p{i}" for i in np.argsort(-(encoder.embed(pictures[:20]) @ encoder.embed(pictures[3:4])[0]))[:5]]
    picture = pictures[3].read_bytes()
    text = base64.b64encode(picture).decode()
    vector = encoder.embed(pictures[3:4])[0]
    searches = [
        {"json": {"image": text, "k": 5}},
        {"json": {"image": f"data:image/jpeg;base64,{text}", "k": 5}},
        {"json": {"vector": vector.tolist(), "k": 5}},
        {"json": {"vector": base64.b64encode(vector.tobytes()).decode(), "k": 5}},
        {"files": {"image": ("q.jpg", picture, "image/jpeg"), "query": (None, '{"k": 5}')}},
        {
            "files": {
                "image": ("q.jpg", picture, "image/jpeg"),
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
    is_problem(client.get(f"{collection}/items/p3"), 404, "item_not_found")
    is_problem(client.delete(f"{collection}/items/p3"), 404, "item_not_found")
    after = client.post(f"{collection}/search", json={"vector": vector.tolist(), "k": 5}).json()["matches"]
    assert "p3" not in [match["id"] for match in after]
    assert client.post(f"{collection}/verify").json()["ok"]
    assert client.post(f"{collection}/snapshot").status_code == 204


def test_a_box_searches_with_a_part_of_the_picture(client, collection, pictures, encoder):
    """The crop is the one that Pillow cuts; a box off the picture is refused."""
    picture = Image.open(pictures[0]).convert("RGB")
    parts = [picture.crop((0, 0, 32, 32)), picture.crop((32, 32, 64, 64))]
    vectors = encoder.embed(parts)
    items = [{"id": f"part{i}", "vector": vector.tolist()} for i, vector in enumerate(vectors)]
    assert client.put(f"{collection}/items", json=items).json()["stored"] == 2
    text = base64.b64encode(pictures[0].read_bytes()).decode()
    for i, box in enumerate(([0, 0, 32, 32], [32, 32, 64, 64])):
        best = client.post(f"{collection}/search", json={"image": text, "box": box, "k": 1}).json()["matches"][0]
        assert best["id"] == f"part{i}"
        assert best["score"] == pytest.approx(1, abs=1e-4)
    for box in ([70, 0, 90, 20], [5, 5, 5, 9], [9, 9, 3, 3]):
        is_problem(client.post(f"{collection}/search", json={"image": text, "box": box}), 422, "invalid_request")


def test_pages_and_filters_of_a_listing(client, collection):
    items = [{"id": f"i{i:02}", "vector": [1.0] * 31 + [i], "metadata": {"n": i}} for i in range(25)]
    client.put(f"{collection}/items", json=items)
    seen, cursor = [], None
    while True:
        page = client.get(f"{collection}/items", params={"limit": 10} | ({"cursor": cursor} if cursor else {})).json()
        seen += [item["id"] for item in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == [item["id"] for item in items]
    where = json.dumps({"must": [{"key": "n", "range": {"gte": 20}}]})
    page = client.get(f"{collection}/items", params={"where": where, "with_vector": True}).json()
    assert [item["id"] for item in page["items"]] == [f"i{i}" for i in range(20, 25)]
    assert np.linalg.norm(page["items"][0]["vector"]) == pytest.approx(1, abs=1e-5)


def test_collections_are_made_once_and_described(client):
    path = "/api/v1/collections/plain"
    assert client.put(path, json={"dim": 4, "metric": "l2"}).status_code == 201
    assert client.put(path, json={"dim": 4, "metric": "l2"}).status_code == 200
    is_problem(client.put(path, json={"dim": 5}), 409, "collection_exists")
    assert "plain" in [one["name"] for one in client.get("/api/v1/collections").json()["collections"]]
    assert client.delete(path).status_code == 204
    is_problem(client.get(path), 404, "collection_not_found")


def test_a_collection_of_another_encoder_is_a_conflict(client, server, pictures):
    from nnclr_hub.store.base import CollectionSpec

    name = "foreign"
    server.bench.store.create(name, CollectionSpec(32, fingerprint="f" * 32, model=server.engines.default))
    text = base64.b64encode(pictures[0].read_bytes()).decode()
    response = client.post(f"/api/v1/collections/{name}/search", json={"image": text})
    assert "nnclr store reembed" in is_problem(response, 409, "fingerprint_mismatch")
    response = client.post(f"/api/v1/collections/{name}/items", files=upload(pictures[:1]))
    is_problem(response, 409, "fingerprint_mismatch")
    server.bench.store.drop(name)


# ---- refusals


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 422, "invalid_request"),
        ({"id": "a", "vector": [1.0]}, 422, "invalid_request"),
        ({"id": "nobody"}, 404, "item_not_found"),
        ({"vector": [1.0, 2.0]}, 422, "invalid_request"),
        ({"vector": [0.0] * 32}, 422, "invalid_request"),
        ({"vector": [1e39] * 32}, 422, "invalid_request"),
        ({"vector": [1.0] * 32, "k": 0}, 422, "invalid_request"),
        ({"vector": [1.0] * 32, "k": 10**9}, 422, "invalid_request"),
        ({"vector": [1.0] * 32, "where": {"most": []}}, 422, "invalid_filter"),
        ({"vector": [1.0] * 32, "box": [0, 0, 1, 1]}, 422, "invalid_request"),
        ({"vector": [1.0] * 32, "unknown": 1}, 422, "invalid_request"),
        ({"image": "YQ=="}, 415, "unsupported_image"),
    ],
)
def test_a_bad_search_is_explained(client, collection, body, status, code):
    is_problem(client.post(f"{collection}/search", json=body), status, code)


def test_malformed_requests_and_unknown_paths_are_problems_too(client, collection):
    headers = {"Content-Type": "application/json"}
    is_problem(client.post(f"{collection}/search", content=b'{"k":', headers=headers), 400, "malformed")
    is_problem(client.put(f"{collection}/items", content=b"[{", headers=headers), 400, "malformed")
    is_problem(client.get("/api/v1/nothing"), 404, "not_found")
    is_problem(client.patch("/api/v1/collections"), 405, "method_not_allowed")
    is_problem(client.post("/api/v1/embed"), 422, "invalid_request")
    is_problem(client.post(f"{collection}/items", data={"items": "["}, files=upload([])), 422, "invalid_request")
    is_problem(client.get(f"{collection}/items", params={"where": "{"}), 422, "invalid_filter")
    is_problem(client.get(f"{collection}/items", params={"limit": 0}), 422, "invalid_request")
    is_problem(client.put(f"{collection}/items", json=[{"id": "a/b", "vector": [1.0] * 32}]), 422, "invalid_request")


def test_pages_elsewhere_can_neither_reach_nor_write(client):
    is_problem(client.get("/api/v1/collections", headers={"Host": "evil.example"}), 403, "host_not_allowed")
    response = client.put("/api/v1/collections/x", json={"dim": 3}, headers={"Origin": "http://evil.example"})
    is_problem(response, 403, "origin_not_allowed")


def test_the_description_of_the_api_is_there(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert "/api/v1/collections/{name}/search" in paths
    assert "/v1/embeddings" in paths
