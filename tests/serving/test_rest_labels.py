"""Labels of a table over REST."""

import json

import pytest
from rest_requests import is_problem

HEADERS = {"Content-Type": "text/csv"}
NAMES = ["a/Küche.png", "a/2.png", "b/2.png", "b/3.png"]


@pytest.fixture
def filled(client, collection):
    """Four items; the third has a label, a number, under a nested key, and the fourth under a key with a dot."""
    extra = [{}, {"cam": {"lens": 1}}, {"cam": {"model": 3}}, {"cam.model": 7}]
    rows = [{"path": name, "root": f"/data/{name[0]}x", **more} for name, more in zip(NAMES, extra, strict=True)]
    client.put(
        f"{collection}/items",
        json=[{"id": f"i{n}", "vector": [1.0] * 31 + [n], "metadata": row} for n, row in enumerate(rows)],
    )
    return dict(zip(("i0", "i1", "i2", "i3"), rows, strict=True))


def held(client, collection):
    return {one["id"]: one["metadata"] for one in client.get(f"{collection}/items").json()["items"]}


def send(client, collection, text, encoding="utf-8", **query):
    return client.post(f"{collection}/labels", content=text.encode(encoding), params=query, headers=HEADERS)


@pytest.mark.parametrize(
    ("text", "encoding", "query", "labels"),
    [
        ("id,label\ni0,cat\ni3,\ni9,dog\n", "utf-8-sig", {}, {"i0": "cat"}),
        ("path;label\na\\Ku\u0308che.png;cat\nx.png;dog\nb/3.png;\n", "utf-16", {}, {"i0": "cat"}),
        ("Datei\tArt\na/Küche.png\tcat\nb/3.png\t\nx\t\n", "cp1252", {"path_column": "Datei", "label_column": "Art"},
         {"i0": "cat"}),
        ("path,labels\nax/a/Küche.png,cat; dog\n/data/bx\\b\\3.png,\nx.png,\n", "utf-8", {},
         {"i0": ["cat", "dog"]}),
    ],
)  # fmt: skip
def test_a_table_labels_items(client, collection, filled, text, encoding, query, labels):
    before = held(client, collection)
    found = send(client, collection, text, encoding, dry_run=True, **query).json()
    counts = {"matched": 2, "unmatched_rows": 1, "unmatched_items": 2}
    values = {id: {"label": label} for id, label in labels.items()}
    first = {"first_unmatched": found["first_unmatched"], "other_columns": []}
    assert found == counts | {"values": values, "updated": 0} | first
    assert len(found["first_unmatched"]) == 1
    assert held(client, collection) == before
    assert send(client, collection, text, encoding, **query).json() == found | {"updated": len(labels)}
    after = held(client, collection)
    assert {id: one["label"] for id, one in after.items() if "label" in one} == labels
    assert {id: {key: one[key] for key in one if key != "label"} for id, one in after.items()} == before


def test_other_columns_are_named_and_read_when_they_are_chosen(client, collection, filled):
    text = "id,label,split,cam.model\ni0,cat,train,X\ni3,dog,test,\n"
    found = send(client, collection, text).json()
    assert found["other_columns"] == ["split", "cam.model"]
    found = send(client, collection, text, columns=json.dumps(["split", "k=cam.model"])).json()
    assert found["values"] == {"i0": {"split": "train", "k": "X"}, "i3": {"split": "test"}}
    assert found["other_columns"] == ["label"]
    after = held(client, collection)
    assert [after[id].get("split") for id in ("i0", "i3")] == ["train", "test"]
    for wrong in ('["nowhere"]', "split", "[1]"):
        assert send(client, collection, text, columns=wrong).status_code == 422


def test_a_label_keeps_its_type_and_goes_where_filters_read_it(client, collection, filled):
    text = "id,label\ni0,3\ni1,4.5\ni2,x\ni3,07\n"
    assert send(client, collection, text, key="cam.model").json()["updated"] == 4
    after = held(client, collection)
    assert [after[id].get("cam") for id in after] == [{"model": 3}, {"lens": 1, "model": 4.5}, {"model": "x"}, None]
    assert after["i3"]["cam.model"] == 7
    each = {"i2": {"cam.model": 1}, "i3": {"cam.model": 1}}
    seen = {"i2": {"cam.model": "x"}, "i3": {"cam.model": 8}}
    body = {"each": each, "expected": seen, "by_path": True}
    is_problem(client.patch(f"{collection}/items", json=body), 409, "metadata_conflict")
    body["expected"]["i3"] = {"cam.model": 7}
    assert client.patch(f"{collection}/items", json=body).json() == {"updated": 2}
    after = held(client, collection)
    assert (after["i2"]["cam"], after["i3"]["cam.model"], "cam" in after["i3"]) == ({"model": 1}, 1, False)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("id,label\ni0,cat\ni0,dog\n", {}),
        ("path,label\na/2.png,cat\nax/a/2.png,dog\n", {}),  # the same item by two paths
        ("id,label\ni1,cat\n", {"key": "cam"}),  # an object
        ("id,label\ni0,cat\n", {"key": "path.x"}),  # below a text
        ("id,label\ni9,cat\n", {}),
        ("id,label\n", {}),
        ("file,label\ni0,cat\n", {}),
        ("id,label\ni0,cat\n", {"label_column": "Art"}),
        ('id,label\ni0,"cat\n', {}),
        ("path,label\n/data/ax/a/2.png,cat\ndata/ax/a/2.png,dog\n", {"path_column": "label"}),
        ("path,label\ndata/ax/a/2.png,dog\n", {}),  # guesses of the folder on the server get no answer
        ("id,label\ni0,cat\n", {"key": "root"}),
    ],
)
def test_a_wrong_table_changes_nothing(client, collection, filled, text, query):
    before = held(client, collection)
    answer = send(client, collection, text, **query)
    assert answer.status_code == 422, answer.text
    assert held(client, collection) == before
    assert client.post(f"{collection}/labels", content=text.encode()).status_code == 415
