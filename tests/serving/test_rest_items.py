"""Items over REST: add, list, get and delete."""

import json
from hashlib import sha256

import numpy as np
import pytest
from rest_requests import as_text, is_problem, upload


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


def test_a_cursor_is_valid_for_its_own_listing_only(client, collection):
    client.put(f"{collection}/items", json=[{"id": f"i{i}", "vector": [1.0] * 31 + [i]} for i in range(5)])
    cursor = client.get(f"{collection}/items", params={"limit": 2}).json()["cursor"]
    assert "i1" not in cursor
    client.delete(f"{collection}/items/i1")
    rest = client.get(f"{collection}/items", params={"cursor": cursor}).json()
    assert ([item["id"] for item in rest["items"]], rest["cursor"]) == (["i2", "i3", "i4"], None)
    where = json.dumps({"must": []})
    foreign = [{"cursor": cursor, "where": where}, {"cursor": "i1"}, {"cursor": cursor[:-2] + "AA"}, {"cursor": "ä"}]
    for params in foreign:
        assert "cursor" in is_problem(client.get(f"{collection}/items", params=params), 422, "invalid_request")
    client.put("/api/v1/collections/other", json={})
    response = client.get("/api/v1/collections/other/items", params={"cursor": cursor})
    is_problem(response, 422, "invalid_request")
    client.delete("/api/v1/collections/other")


def test_images_without_ids_get_a_hash_as_id(client, collection, image_files):
    """The same image gets the same id again."""
    for _ in range(2):
        results = client.post(f"{collection}/items", files=upload(image_files[:2])).json()["results"]
    assert [one["name"] for one in results] == ["00.jpg", "01.jpg"]
    assert [one["id"] for one in results] == [sha256(p.read_bytes()).hexdigest()[:32] for p in image_files[:2]]
    assert client.get(f"{collection}/count").json() == {"count": 2}
    item = client.get(f"{collection}/items/{results[0]['id']}").json()
    assert item["metadata"]["name"] == "00.jpg"
    assert len(item["metadata"]["pixel_sha256"]) == 64


def test_images_are_accepted_as_json(client, collection, image_files, encoder):
    items = [
        {"id": "a", "image": as_text(image_files[0]), "metadata": {"label": "x"}},
        {"image": "***"},
        {"image": as_text(image_files[1])},
    ]
    results = client.post(f"{collection}/items", json={"items": items}).json()["results"]
    assert [("id" in one, "error" in one) for one in results] == [(True, False), (False, True), (True, False)]
    item = client.get(f"{collection}/items/a").json()
    assert item["metadata"]["label"] == "x"
    np.testing.assert_allclose(item["vector"], encoder.embed(image_files[:1])[0], atol=1e-5)
    is_problem(client.post(f"{collection}/items", json={"items": [{"image": "***"}]}), 422, "undecodable_image")


def test_an_id_twice_in_a_request_is_refused_and_nothing_stored(client, collection, image_files):
    note = json.dumps([{"id": "same"}] * 2)
    response = client.post(f"{collection}/items", files=upload(image_files[:2]), data={"items": note})
    assert "'same' is given twice" in is_problem(response, 422, "invalid_request")
    is_problem(client.put(f"{collection}/items", json=[{"id": "x", "vector": [1.0] * 32}] * 2), 422, "invalid_request")
    assert client.get(f"{collection}/count").json() == {"count": 0}


def test_a_count_takes_a_filter(client, collection):
    client.put(
        f"{collection}/items", json=[{"id": f"i{n}", "vector": [1.0] * 32, "metadata": {"n": n}} for n in range(9)]
    )
    where = json.dumps({"must": [{"key": "n", "range": {"lt": 4}}]})
    assert client.get(f"{collection}/count", params={"where": where}).json() == {"count": 4}
    is_problem(client.get(f"{collection}/count", params={"where": "[]"}), 422, "invalid_filter")
    is_problem(client.get("/api/v1/collections/nothing/count"), 404, "collection_not_found")


def test_a_thumbnail_is_cached_by_its_etag(client, collection, image_files):
    client.post(f"{collection}/items", files=upload(image_files[:1]), data={"items": '[{"id": "a"}]'})
    first = client.get(f"{collection}/items/a/thumbnail")
    again = client.get(f"{collection}/items/a/thumbnail", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_integers_beyond_64_bits_in_metadata_are_refused(client, collection):
    for number, status in ((2**63 - 1, 200), (2**70, 422)):
        item = {"id": "a", "vector": [1.0] * 32, "metadata": {"n": number}}
        assert client.put(f"{collection}/items", json=[item]).status_code == status
    assert client.get(f"{collection}/items/a").json()["metadata"] == {"n": 2**63 - 1}


def test_notes_may_be_as_large_as_a_body(client, collection, image_files):
    """Two megabytes of metadata fit in one part, as they do in JSON."""
    notes = [{"id": f"p{i}", "metadata": {"text": chr(97 + i % 26) * 60_000}} for i in range(35)]
    response = client.post(f"{collection}/items", files=upload(image_files[:35]), data={"items": json.dumps(notes)})
    assert response.status_code == 200, response.text
    for note in (notes[0], notes[-1]):
        assert client.get(f"{collection}/items/{note['id']}").json()["metadata"]["text"] == note["metadata"]["text"]


def test_the_original_is_the_source_or_the_thumbnail(client, server, collection, image_files, tmp_path_factory):
    """A file below the server's source folders, as it is; whatever was uploaded has its thumbnail alone."""
    [folder] = server.app.state.settings.source_folders
    (folder / "sources").mkdir()
    (folder / "sources" / "a.jpg").write_bytes(image_files[0].read_bytes())
    server.bench.index_folder("photos", folder / "sources")
    [item] = server.bench.collection("photos").scroll().items
    answer = client.get(f"{collection}/items/{item.id}/original")
    assert (answer.status_code, answer.headers["X-Image"]) == (200, "source")
    assert answer.content == image_files[0].read_bytes()
    assert answer.headers["content-type"] == "image/jpeg"
    client.post(f"{collection}/items", files={"files": image_files[1].read_bytes()}, data={"items": '[{"id": "b"}]'})
    uploaded = client.get(f"{collection}/items/b/original")
    assert uploaded.headers["X-Image"] == "thumbnail"
    assert uploaded.content == client.get(f"{collection}/items/b/thumbnail").content
    assert client.get(f"{collection}/items/none/original").status_code == 404


def test_vectors_of_another_encoder_are_a_conflict(client, collection):
    """A client that names the encoder of its vectors is refused after a re-embedding, whatever their length."""
    ours, items = client.get(collection).json()["fingerprint"], [{"id": "a", "vector": [1.0] * 32}]
    response = client.put(f"{collection}/items", params={"fingerprint": "f" * 32}, json=items)
    is_problem(response, 409, "fingerprint_mismatch")
    assert client.put(f"{collection}/items", params={"fingerprint": ours}, json=items).json()["stored"] == 1
