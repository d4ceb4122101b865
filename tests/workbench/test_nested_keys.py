"""A key means the same everywhere: grouping, probes, inspections and comparisons read camera.model as filters do."""

import io

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.queries import best_per_group
from nnclr_hub.workbench.inspection.comparison import compare_on_collection
from nnclr_hub.workbench.inspection.subject import collection_subject
from nnclr_hub.workbench.labels import labeled_items

KEY = "camera.model"
FORMS = {
    "nested": lambda value: {"camera": {"model": value}},
    "flat": lambda value: {KEY: value},
    "both": lambda value: {KEY: value, "camera": {"model": "other"}},
    "mixed": lambda value: {"camera": {"model": value}} if value == "a" else {KEY: value},
}


@pytest.fixture(params=FORMS)
def collection(request, store):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 40, 3), np.uint8)).save(jpeg := io.BytesIO(), "JPEG")
    made = store.create("c", CollectionSpec(4))
    for i in range(44):
        metadata = FORMS[request.param]("ab"[i % 2])
        if i >= 40:
            metadata = [{}, {"camera": {}}, {"camera": "a"}, {"camera": {"model": None}}][i - 40]
        made.upsert([Item(f"i{i}", rng.normal(size=4).astype(np.float32), metadata, jpeg.getvalue())])
    return made


def test_a_key_is_read_alike_everywhere(collection):
    assert [value for value, _ in collection.facets([KEY])[KEY].values][:2] == ["a", "b"]
    found = best_per_group(collection, np.ones(4, np.float32), KEY, k=5)
    assert len(found) == 2  # a and b
    labels = labeled_items(collection, KEY)
    assert (labels.classes, len(labels.labels), labels.left_out) == (("a", "b"), 40, {"no label": 4})
    assert [collection_subject(collection, field=KEY).labels.count(one) for one in ("a", "b", None)] == [20, 20, 4]
    assert compare_on_collection(collection, [("pixels", FLOORS["pixels"])], KEY).labels == 40
    with pytest.raises(InvalidRequest):
        labeled_items(collection, "camera.lens")


def test_equal_labels_are_one_class_everywhere(store):
    """Numbers, truth values and lists of one label are the labels of a probe and the classes of an inspection."""
    values = [3, 3.0, [3], True, [True], "cat", ["cat"], None, "", [], [None], ["cat", "dog"], {"name": "cat"}]
    names = ["3", "3", "3", "true", "true", "cat", "cat", None, None, None, None, None, None]
    made = store.create("c", CollectionSpec(4))
    rows = np.random.default_rng(0).normal(size=(len(values), 4)).astype(np.float32)
    made.upsert([Item(f"i{n:02}", rows[n], {"label": value}) for n, value in enumerate(values)])
    subject = collection_subject(made)
    assert dict(zip(subject.items, subject.labels, strict=True)) == {f"i{n:02}": name for n, name in enumerate(names)}
    made.delete([f"i{len(values) - 1}"])
    assert {str(label) for own in labeled_items(made, "label").labels for label in own} == {"3", "true", "cat", "dog"}
