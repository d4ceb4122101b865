"""Items over REST: add, list, get, edit and label them."""

import json
from hashlib import sha256

import httpx
import numpy as np
import pytest
from rest_requests import as_text, is_problem, upload
from waiting import until


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


def test_a_thumbnail_is_cached_by_its_etag(client, collection, image_files):
    client.post(f"{collection}/items", files=upload(image_files[:1]), data={"items": '[{"id": "a"}]'})
    first = client.get(f"{collection}/items/a/thumbnail")
    again = client.get(f"{collection}/items/a/thumbnail", headers={"If-None-Match": first.headers["ETag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_notes_may_be_as_large_as_a_body(client, collection, image_files):
    """Two megabytes of metadata fit in one part, as they do in JSON."""
    notes = [{"id": f"p{i}", "metadata": {"text": chr(97 + i % 26) * 60_000}} for i in range(35)]
    response = client.post(f"{collection}/items", files=upload(image_files[:35]), data={"items": json.dumps(notes)})
    assert response.status_code == 200, response.text
    texts = {one["id"]: one["metadata"]["text"] for one in client.get(f"{collection}/items").json()["items"]}
    assert texts == {note["id"]: note["metadata"]["text"] for note in notes}


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


def test_originals_of_equal_pixels_are_kept_apart_and_those_without_an_item_deleted(
    model, image_files, tmp_path, serve
):
    plain = image_files[0].read_bytes()
    files = {"a": plain, "b": plain[:2] + b"\xff\xfe\x00\x0amy notes" + plain[2:]}  # a comment
    for server in serve(model, tmp_path / "store", originals_bytes=10**6):
        place = f"{server.url}/api/v1/collections/kept"
        with httpx.Client(timeout=60) as client:
            client.put(place, json={})
            for id, data in files.items():
                client.post(f"{place}/items", files={"files": data}, data={"items": json.dumps([{"id": id}])})
            assert {id: client.get(f"{place}/items/{id}/original").content for id in files} == files
    lost = tmp_path / "store" / "originals" / "00" / ("0" * 64)
    lost.parent.mkdir(exist_ok=True)
    lost.write_bytes(b"the server was killed before its item was written")
    for _ in serve(model, tmp_path / "store", originals_bytes=10**6):
        until(lambda: not lost.exists())
        assert len([path for path in lost.parents[1].rglob("*") if path.is_file()]) == len(files)


# ---- many items at once over REST: get, delete, edits of metadata, facets and indexed keys


@pytest.fixture
def filled(client, collection):
    """Twenty items; returns the metadata of all by id."""
    items = [
        {
            "id": f"i{i:02}",
            "vector": [1.0] * 31 + [i],
            "metadata": {"n": i, "tags": ["odd"] * (i % 2), "a": {"b": i % 3}},
        }
        for i in range(20)
    ]
    client.put(f"{collection}/items", json=items)
    return {item["id"]: item["metadata"] for item in items}


def listed(client, collection):
    return {one["id"]: one["metadata"] for one in client.get(f"{collection}/items").json()["items"]}


def test_a_conditional_edit_names_the_items_that_changed_and_changes_none(client, collection, filled):
    """See tests/contract, too."""
    path = f"{collection}/items"
    each = {"i00": {"n": "new"}, "i01": {"a": {"b": None, "c": [1]}}, "none": {"n": 1}}
    seen = {"i00": {"n": 0, "label": None}, "i01": {"a": {"b": 1}, "tags": ["odd"]}, "none": {"n": 5}}
    for wrong in ({"n": 1}, {"label": "cat"}, {"n": False}):
        answer = client.patch(path, json={"each": each, "expected": seen | {"i00": wrong}})
        is_problem(answer, 409, "metadata_conflict")
        current = {key: filled["i00"].get(key) for key in wrong}
        assert answer.json()["errors"] == [{"id": "i00", "metadata": current}]
    assert listed(client, collection) == filled
    assert client.patch(path, json={"each": each, "expected": seen}).json() == {"updated": 2}
    changed = {"i00": {**filled["i00"], "n": "new"}, "i01": {**filled["i01"], "a": {"c": [1]}}}
    assert listed(client, collection) == {**filled, **changed}


EVERY = {"must_not": [{"ids": []}]}


def test_a_write_by_a_filter_is_limited(client, collection, filled, monkeypatch):
    monkeypatch.setattr("serving.routes.items.MAX_WRITTEN", 19)
    for response in (
        client.patch(f"{collection}/items", json={"metadata": {"x": 1}, "where": EVERY}),
        client.post(f"{collection}/delete", json={"where": EVERY}),
    ):
        is_problem(response, 413, "request_too_large")
    assert listed(client, collection) == filled


# ---- labels of a table over REST; tests/workbench has every spelling of a table


NAMES = ["a/Küche.png", "a/2.png", "b/2.png", "b/3.png"]


@pytest.fixture
def labeled(client, collection):
    """Make four items with paths; the third has a value in an object, and the fourth under a key with a dot."""
    extra = [{}, {"cam": {"lens": 1}}, {"cam": {"model": 3}}, {"cam.model": 7}]
    rows = [{"path": name, "root": f"/data/{name[0]}x", **more} for name, more in zip(NAMES, extra, strict=True)]
    items = [{"id": f"i{n}", "vector": [1.0] * 31 + [n], "metadata": row} for n, row in enumerate(rows)]
    client.put(f"{collection}/items", json=items)


def send(client, collection, text, encoding="utf-8", **query):
    headers = {"Content-Type": "text/csv"}
    return client.post(f"{collection}/labels", content=text.encode(encoding), params=query, headers=headers)


def test_a_table_labels_items(client, collection, labeled):
    before = listed(client, collection)
    text = "Datei\tArt\tsplit\na/Ku\u0308che.png\tcat\ttrain\nb/3.png\t\ttest\nx\t\t\n"
    query = {"encoding": "utf-16", "path_column": "Datei", "label_column": "Art"}
    counts = {"matched": 2, "unmatched_rows": 1, "unmatched_items": 2, "first_unmatched": ["x"]}
    expected = counts | {"values": {"i0": {"label": "cat"}}, "other_columns": ["split"]}
    assert send(client, collection, text, dry_run=True, **query).json() == expected | {"updated": 0}
    assert listed(client, collection) == before
    assert send(client, collection, text, **query).json() == expected | {"updated": 1}
    assert listed(client, collection) == before | {"i0": {**before["i0"], "label": "cat"}}
    columns = json.dumps(["split", "k=Art"])
    found = send(client, collection, text, columns=columns, encoding="utf-16", path_column="Datei").json()
    assert found["values"] == {"i0": {"split": "train", "k": "cat"}, "i3": {"split": "test"}}


def test_an_edit_by_path_goes_where_a_label_of_a_table_goes(client, collection, labeled):
    """To an object, or to a key with a dot that exists already."""
    assert send(client, collection, "id,label\ni1,4.5\ni3,07\n", key="cam.model").json()["updated"] == 2
    edit = {"each": {"i1": {"cam.model": 1}, "i3": {"cam.model": 1}}, "by_path": True}
    path = f"{collection}/items"
    answer = client.patch(path, json=edit | {"expected": {"i1": {"cam.model": 4.5}, "i3": {"cam.model": 8}}})
    is_problem(answer, 409, "metadata_conflict")
    seen = {"i1": {"cam.model": 4.5}, "i3": {"cam.model": 7}}
    assert client.patch(path, json=edit | {"expected": seen}).json() == {"updated": 2}
    after = listed(client, collection)
    assert (after["i1"]["cam"], after["i3"]["cam.model"], "cam" in after["i3"]) == ({"lens": 1, "model": 1}, 1, False)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("path,label\na/2.png,cat\nax/a/2.png,dog\n", {}),  # the same item by two paths
        ("id,label\ni1,cat\n", {"key": "cam"}),  # an object
        ("id,label\ni0,cat\n", {"key": "path.x"}),  # below a text
        ("path,label\n/data/ax/a/2.png,cat\ndata/ax/a/2.png,dog\n", {"path_column": "label"}),
        ("path,label\ndata/ax/a/2.png,dog\n", {}),  # guesses of the folder on the server get no answer
    ],
)
def test_a_wrong_table_changes_nothing(client, collection, labeled, text, query):
    """See test_refusals.py, too."""
    before = listed(client, collection)
    is_problem(send(client, collection, text, **query), 422, "invalid_request")
    assert listed(client, collection) == before


# ---- labels of the keys 1 to 9, which everybody who labels a collection shares


def test_everybody_sees_the_same_labels_of_the_keys(client, collection):
    place = f"{collection}/label-keys"
    assert client.get(place).json() == {"field": "label", "labels": []}
    kinds = {"field": "kind", "labels": ["cat", None, 3, True, 0.5]}
    assert client.put(place, json={"labels": ["cat"]}).json() == {"field": "label", "labels": ["cat"]}
    assert client.put(place, json=kinds).json() == kinds
    found = client.get(place).json()
    assert (found, list(map(type, found["labels"]))) == (kinds, [str, type(None), int, bool, float])
    assert client.get(place, params={"field": "label"}).json()["labels"] == ["cat"]
    late = client.put(place, json=kinds | {"labels": ["dog"], "expected": ["cat", None, 3, 1, 0.5]})  # true is not 1
    assert (late.status_code, late.json()["code"]) == (409, "metadata_conflict")
    assert client.get(place).json() == kinds
    assert client.put(place, json=kinds | {"labels": ["dog"], "expected": kinds["labels"]}).status_code == 200
    assert client.patch(collection, json={"name": "renamed"}).status_code == 200
    assert client.get("/api/v1/collections/renamed/label-keys").json() == {"field": "kind", "labels": ["dog"]}
    whole = {"field": "kind", "labels": [1.0, 2.5]}
    client.put("/api/v1/collections/renamed/label-keys", json=whole)
    later = client.put("/api/v1/collections/renamed/label-keys", json=whole | {"expected": [1, 2.5]})  # as JavaScript
    assert later.status_code == 200
    client.patch("/api/v1/collections/renamed", json={"name": "photos"})


def test_a_server_without_records_has_no_labels_of_keys_and_refuses_them(client, collection, server, monkeypatch):
    """A replica keeps no records, and neither does a server with --read-only. Pages keep the keys then."""
    monkeypatch.setattr(server.bench.store.records, "read_only", True)
    place = f"{collection}/label-keys"
    assert client.get(place).json() == {"field": "label", "labels": []}
    refused = client.put(place, json={"labels": ["cat"]})
    assert (refused.status_code, refused.json()["code"]) == (403, "read_only")
    assert client.get(place).json()["labels"] == []
