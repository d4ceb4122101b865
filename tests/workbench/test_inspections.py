"""Inspections that are kept with a store."""

import csv
import json

import numpy as np
import pytest
from commands import output_of

from nnclr_hub.errors import InspectionNotFound, InvalidRequest
from nnclr_hub.store.base import Item
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.workbench import Encoders, Workbench
from nnclr_hub.workbench.inspection.findings import InspectionRequest, inspect_collection, item_fields, write_fields
from nnclr_hub.workbench.inspections import (
    INSPECTION as KEY,
)
from nnclr_hub.workbench.inspections import (
    KEPT,
    get_inspection,
    is_current,
    keep_inspection,
    list_inspections,
    place_new,
)


def fill(store, count: int = 60):
    """Return a collection of two groups of vectors."""
    collection = store.create("points", CollectionSpec(dim=8))
    random = np.random.default_rng(0)
    centers = np.eye(8)[:2] * 3
    vectors = [centers[i % 2] + random.normal(0, 0.3, 8) for i in range(count)]
    collection.upsert([Item(f"{i:03}", v.astype(np.float32), {"label": "ab"[i % 2]}) for i, v in enumerate(vectors)])
    return collection


@pytest.mark.parametrize("write", [False, True])
def test_one_bar_shows_all_steps(store, write):
    fill(store)
    seen: list[tuple[int, int]] = []
    request = InspectionRequest("points", write_fields=write)
    Workbench(Encoders(), store).run("inspection", request, lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen), "one bar that only grows"
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1]


def test_what_is_kept_is_what_was_found(store):
    collection = fill(store)
    made = inspect_collection(collection)
    keep_inspection(store.records, made)
    kept = get_inspection(store.records, collection)
    assert kept.ids == made.ids == tuple(f"{i:03}" for i in range(60))
    assert np.array_equal(kept.coordinates, made.coordinates)
    assert kept.coordinates.shape == (60, 2)
    assert np.array_equal(kept.clusters, made.clusters)
    assert np.array_equal(kept.outlier_scores, made.outlier_scores)
    assert kept.findings["images"] == 60
    left, right = kept.coordinates[::2], kept.coordinates[1::2]
    apart = np.linalg.norm(left.mean(0) - right.mean(0))
    assert apart > np.linalg.norm(left - left.mean(0), axis=1).mean(), "the two groups are apart on the map"


def test_the_newest_are_kept_and_say_whether_they_are_current(store):
    collection = fill(store)
    made = inspect_collection(collection)
    for _ in range(KEPT + 2):
        keep_inspection(store.records, made)
    assert list_inspections(store.records, collection) == list(range(KEPT + 2, 2, -1))
    assert is_current(get_inspection(store.records, collection), collection)
    collection.delete(["000"])
    assert not is_current(get_inspection(store.records, collection), collection)
    with pytest.raises(InspectionNotFound):
        get_inspection(store.records, collection, 1)


def test_a_collection_of_the_same_name_does_not_inherit_them(store):
    keep_inspection(store.records, inspect_collection(fill(store)))
    store.drop("points")
    collection = fill(store)
    assert list_inspections(store.records, collection) == []
    with pytest.raises(InspectionNotFound):
        get_inspection(store.records, collection)


def test_a_collection_with_one_item_is_refused(store):
    with pytest.raises(InvalidRequest):
        inspect_collection(fill(store, 1))


def flip(collection, ids=("010", "021")):
    """Give some items the label of the other group, and add a copy of an item."""
    for id in ids:
        collection.update_metadata({"label": "ab"[(int(id) + 1) % 2]}, ids=[id])
    [item] = collection.get(["030"])
    collection.upsert([Item("copy", item.vector + np.float32(1e-5), {"label": "a"})])


def test_findings_are_fields_that_filters_and_facets_understand(store):
    collection = fill(store)
    flip(collection)
    kept = write_fields(collection, inspect_collection(collection), collection.update_each)
    keep_inspection(store.records, kept)

    def passing(**condition):
        page = collection.scroll(where={"must": [condition]}, limit=100)
        return {item.id for item in page.items}

    for number in set(kept.clusters.tolist()):
        own = {id for id, cluster in zip(kept.ids, kept.clusters, strict=True) if cluster == number}
        assert passing(key="inspection.cluster", match=int(number)) == own
    bound = float(np.sort(kept.outlier_scores)[-5]) - 1e-4
    assert passing(key="inspection.outlier", range={"gte": bound}) >= {
        kept.ids[i] for i in np.argsort(kept.outlier_scores)[-5:]
    }
    assert passing(key="inspection.duplicates", exists=True) == {"030", "copy"}
    assert passing(key="inspection.suspect", match=True) == {"010", "021"}
    assert [item.metadata[KEY]["proposed"] for item in collection.get(["010", "021"])] == ["a", "b"]
    counted = collection.facets(["inspection.cluster"], limit=50)["inspection.cluster"]
    assert sum(number for _, number in counted.values) == 61
    collection.update_metadata({KEY: {"reviewed": "b"}}, ids=["010"])  # a person confirms the label
    assert [one["item"] for one in inspect_collection(collection).findings["suspect_labels"] if one["flagged"]] == [
        "021"
    ]
    collection.update_metadata({KEY: {"reviewed": None}}, ids=["010"])
    keep_inspection(store.records, write_fields(collection, inspect_collection(collection), collection.update_each))
    # neither the fields nor labels make the inspection outdated, other items do; the next inspection removes the fields
    assert is_current(get_inspection(store.records, collection), collection)
    collection.update_metadata({"label": "a"}, ids=["010"])
    collection.update_metadata({"label": "b"}, ids=["021"])
    collection.update_metadata({KEY: {"mine": 1}}, ids=["021"])
    assert is_current(get_inspection(store.records, collection), collection)
    collection.upsert(collection.get(["021"]))
    assert not is_current(get_inspection(store.records, collection), collection)
    again = write_fields(collection, inspect_collection(collection), collection.update_each)
    assert again.fields_seq == collection.info().durable_seq
    assert passing(key="inspection.suspect", exists=True) == set()
    assert passing(key="inspection.seq", match=again.seq) == set(again.ids)
    assert passing(key="inspection.mine", match=1) == {"021"}, "what others wrote there stays"


def test_fields_of_a_changed_collection_do_not_claim_to_be_current(store):
    collection = fill(store)
    made = inspect_collection(collection)

    def write(patches):
        collection.delete(["000"])  # someone else
        return collection.update_each(patches)

    assert write_fields(collection, made, write).fields_seq is None
    assert len(item_fields(made)) == 60


def test_new_items_are_placed_next_to_their_neighbors(store):
    collection = fill(store)
    made = inspect_collection(collection)
    assert place_new(collection, made).ids == ()
    random = np.random.default_rng(1)
    groups = [np.eye(8)[i % 2] * 3 + random.normal(0, 0.3, 8) for i in range(70)]
    far = [np.eye(8)[5] * 3 + random.normal(0, 0.01, 8) for _ in range(60)]  # near each other alone
    collection.upsert([Item(f"n{i:03}", v.astype(np.float32)) for i, v in enumerate(groups + far)])
    placed = place_new(collection, made)
    assert placed.cursor is None
    assert placed.ids == tuple(f"n{i:03}" for i in range(130))
    side = made.coordinates[::2, 0].mean() > made.coordinates[1::2, 0].mean()
    middle = made.coordinates[:, 0].mean()
    right = (placed.coordinates[:70, 0] > middle) == side
    assert (right == (np.arange(70) % 2 == 0)).mean() > 0.95
    for even in (0, 1):
        same = made.clusters[even::2]
        assert np.isin(placed.clusters[even:70:2], same).mean() > 0.95
    assert (placed.clusters >= 0).all()
    assert np.isin(placed.coordinates[70:], made.coordinates).all(), "the others are at a medoid or with each other"
    pages, cursor = [], None
    while True:
        page = place_new(collection, made, cursor, 50)
        pages += page.ids
        if (cursor := page.cursor) is None:
            break
    assert tuple(pages) == placed.ids


@pytest.mark.parametrize("own", ["passed", {"cluster": "north"}, {"seq_no": 1}, ["a"]])
def test_metadata_under_the_key_of_the_findings_is_not_replaced(store, own):
    collection = fill(store)
    collection.update_metadata({KEY: own}, ids=["007"])
    bench = Workbench(Encoders(), store)
    with pytest.raises(InvalidRequest, match="007"):
        bench.run("inspection", InspectionRequest("points", write_fields=True))
    assert [item.metadata.get(KEY) for item in collection.get(["007", "008"])] == [own, None]
    bench.run("inspection", InspectionRequest("points"))


def test_fields_of_an_earlier_inspection_and_reviews_are_updated(store):
    collection = fill(store)
    collection.update_metadata({KEY: {"reviewed": "a"}}, ids=["007"])
    bench = Workbench(Encoders(), store)
    for _ in range(2):
        bench.run("inspection", InspectionRequest("points", write_fields=True))
    [item] = collection.get(["007"])
    assert item.metadata[KEY]["reviewed"] == "a"
    assert "cluster" in item.metadata[KEY]


def test_a_folder_and_its_collection_have_the_same_findings(model, folder, tmp_path, monkeypatch):
    """The ids of a collection sort its items in another order than their paths."""
    monkeypatch.chdir(tmp_path)
    output_of("index", folder, "--collection", "c", "--model", model, "--store", "store", "--no-thumbnails")
    output_of("inspect", folder, "--model", model, "--out", "of-folder")
    output_of("inspect", "c", "--store", "store", "--out", "of-collection")
    names = {file: ("path", *columns) for file, *columns in (("suspect_labels.csv", "label"),)}
    names |= {"clusters.csv": ("path", "cluster"), "outliers.csv": ("path", "outlier_score")}
    for file, columns in names.items():
        first, second = (
            [
                tuple(row[name] for name in columns)
                for row in csv.DictReader((tmp_path / to / file).read_text().splitlines())
            ]
            for to in ("of-folder", "of-collection")
        )
        assert first == second, file
    first, second = (json.loads((tmp_path / to / "findings.json").read_text()) for to in ("of-folder", "of-collection"))
    assert first["accuracy"] == second["accuracy"]
    scores = [[one["score"] for one in found["suspect_labels"]] for found in (first, second)]
    # of fits that end at a tolerance, on vectors that the store has rounded
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
