"""Many items at once over REST: get, delete, edits of metadata, facets and indexed keys."""

import json

import pytest
from rest_requests import finished, is_problem


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


def test_edits_by_ids_and_by_filter_change_what_they_say(client, collection, filled):
    odd = {"must": [{"key": "tags", "contains": "odd"}, {"must_not": [{"ids": ["i01"]}]}]}
    path = f"{collection}/items"
    assert client.patch(path, json={"ids": ["i00", "none"], "metadata": {"n": None, "a": {"c": 1}}}).json() == {
        "updated": 1
    }
    assert client.patch(path, json={"where": odd, "metadata": {"x": 1}, "replace": True}).json() == {"updated": 9}
    want = {id: {"x": 1} if about["tags"] and id != "i01" else about for id, about in filled.items()}
    want["i00"] = {"tags": [], "a": {"b": 0, "c": 1}}
    assert listed(client, collection) == want
    got = client.post(f"{collection}/lookup", json={"ids": ["i03", "none", "i00"]}).json()["items"]
    assert [(one["id"], one["metadata"], len(one["vector"])) for one in got] == [
        ("i03", {"x": 1}, 32),
        ("i00", want["i00"], 32),
    ]
    changes = client.get(f"{collection}/changes").json()["changes"]
    assert [(one["op"], one["id"]) for one in changes[20:]] == [("upsert", id) for id in ["i00", *sorted(want)[3::2]]]


def test_a_conditional_edit_changes_all_of_its_items_or_none(client, collection, filled):
    path = f"{collection}/items"
    each = {"i00": {"n": "new"}, "i01": {"a": {"b": None, "c": [1]}}, "none": {"n": 1}}
    seen = {"i00": {"n": 0, "label": None}, "i01": {"a": {"b": 1}, "tags": ["odd"]}, "none": {"n": 5}}
    conflicts = {
        "i00": [{"n": 1}, {"n": None}, {"label": "cat"}, {"n": False}, {"n": {"b": None}}],
        "i01": [{"tags": ["even"]}, {"tags": []}, {"tags": [True]}, {"a": {"b": 2}}, {"a": 1}],
    }
    for id, wrong in conflicts.items():
        for values in wrong:
            answer = client.patch(path, json={"each": each, "expected": seen | {id: values}})
            is_problem(answer, 409, "metadata_conflict")
            assert answer.json()["errors"] == [{"id": id, "metadata": {key: filled[id].get(key) for key in values}}]
    assert listed(client, collection) == filled
    assert client.patch(path, json={"each": each, "expected": seen}).json() == {"updated": 2}
    changed = {"i00": {**filled["i00"], "n": "new"}, "i01": {**filled["i01"], "a": {"c": [1]}}}
    assert listed(client, collection) == {**filled, **changed}
    assert client.patch(path, json={"each": {"i00": {"n": 0}}}).json() == {"updated": 1}  # without a condition
    for wrong in ({"ids": ["i00"]}, {"metadata": {}}, {"replace": True}, {"expected": {"i02": {}}}):
        is_problem(client.patch(path, json={"each": each, "expected": seen} | wrong), 422, "invalid_request")
    unpaired = {"ids": ["i00"], "metadata": {"n": 1}, "expected": {"i00": {}}}
    is_problem(client.patch(path, json=unpaired), 422, "invalid_request")


def test_deletes_by_ids_and_by_filter(client, collection, filled):
    assert client.post(f"{collection}/delete", json={"ids": ["i00", "i00", "none"]}).json() == {"deleted": 1}
    few = {"must": [{"key": "a.b", "match": 1}]}
    assert client.post(f"{collection}/delete", json={"where": few}).json() == {"deleted": 7}
    assert set(listed(client, collection)) == {
        id for id, about in filled.items() if about["a"]["b"] != 1 and id != "i00"
    }


def test_facets_count_values_and_numbers(client, collection, filled):
    body = {
        "keys": ["a.b", "n", "tags", "nothing"],
        "limit": 2,
        "bins": 2,
        "where": {"must": [{"key": "n", "range": {"lt": 4}}]},
    }
    found = {one["key"]: one for one in client.post(f"{collection}/facets", json=body).json()["facets"]}
    assert found["a.b"]["values"] == [{"value": 0, "count": 2}, {"value": 1, "count": 1}]
    assert (found["a.b"]["distinct"], found["a.b"]["items"]) == (3, 4)
    assert found["n"]["histogram"] == {"edges": [0, 1.5, 3], "counts": [2, 2]}
    assert (found["tags"]["items"], found["tags"]["values"]) == (4, [{"value": "odd", "count": 2}])
    assert (found["nothing"]["items"], found["nothing"]["histogram"]) == (0, None)


def test_indexed_keys_can_be_changed(client, collection):
    assert client.put(f"{collection}/indexed", json={"keys": ["n", "a.b"]}).json()["indexed"] == ["n", "a.b"]
    assert client.get(collection).json()["indexed"] == ["n", "a.b"]


def test_requests_that_would_be_wrong_or_too_large_are_refused(client, collection, filled, monkeypatch):
    path = f"{collection}/items"
    bad = [
        client.patch(path, json={"metadata": {"x": 1}}),
        client.patch(path, json={"metadata": {"x": 1}, "ids": ["a"], "where": {}}),
        client.patch(path, json={"metadata": {"x": "y" * 65_536}, "ids": ["i00"]}),
        client.patch(
            path, json={"metadata": {"x": 1}, "where": {"must": [{"should": [{"key": "root", "exists": True}]}]}}
        ),
        client.post(f"{collection}/delete", json={}),
        client.post(f"{collection}/lookup", json={"ids": ["i00"] * 1001}),
        client.post(f"{collection}/facets", json={"keys": ["root"]}),
        client.post(f"{collection}/facets", json={"keys": []}),
    ]
    for response in bad:
        is_problem(response, 422, "invalid_request")
    is_problem(client.post(f"{collection}/delete", json={"where": {"must": [1]}}), 422, "invalid_filter")
    monkeypatch.setattr("serving.routes.items.MAX_WRITTEN", 19)
    for response in (
        client.patch(path, json={"metadata": {"x": 1}, "where": {}}),
        client.post(f"{collection}/delete", json={"where": {}}),
    ):
        is_problem(response, 413, "request_too_large")
    assert listed(client, collection) == filled


def test_an_integer_that_no_filter_can_compare_is_refused_by_every_write(client, collection, filled):
    vector, huge = [1.0] * 32, 10**400
    writes = [
        client.put(f"{collection}/items", json=[{"id": "x", "vector": vector, "metadata": {"n": huge}}]),
        client.patch(f"{collection}/items", json={"metadata": {"n": huge}, "where": {}}),
        client.patch(f"{collection}/items", json={"metadata": {"n": {"m": [huge]}}, "ids": ["i00"]}),
    ]
    for response in writes:
        is_problem(response, 422, "invalid_request")
    lines = json.dumps({"id": "x", "vector": vector, "metadata": {"n": huge}})
    headers = {"Content-Type": "application/x-ndjson"}
    made = client.post(f"{collection}/imports", content=lines, headers=headers)
    done = finished(client, made.headers["location"])
    assert (done["state"], len(done["result"]["errors"])) == ("done", 1)
    where = {"must": [{"key": "n", "match": huge}]}
    is_problem(client.post(f"{collection}/delete", json={"where": where}), 422, "invalid_filter")
    assert client.post(f"{collection}/facets", json={"keys": ["n"]}).json()["facets"][0]["items"] == 20
    assert listed(client, collection) == filled


def test_deleting_an_empty_selection_deletes_nothing(client, collection, filled):
    for where in ({"should": []}, {"must": [{"should": []}]}):
        assert client.post(f"{collection}/delete", json={"where": where}).json() == {"deleted": 0}
    assert listed(client, collection) == filled
