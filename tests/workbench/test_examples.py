"""Searches by several examples of every kind."""

import numpy as np
import pytest
from PIL import Image

from nnclr_hub.errors import InvalidRequest
from nnclr_hub.store import open_store
from nnclr_hub.store.queries import search_like
from nnclr_hub.workbench import Encoders, Workbench
from nnclr_hub.workbench.examples import Example, embed_examples, search_by_examples


@pytest.fixture(scope="module")
def bench(model, photos, tmp_path_factory):
    with open_store(str(tmp_path_factory.mktemp("examples") / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.index_folder("photos", photos)
        yield bench


def test_images_boxes_vectors_and_items_are_one_query(bench, pictures):
    """As if each were embedded on its own, and the store asked."""
    collection = bench.collection("photos")
    a, b, c = (item.id for item in collection.scroll(limit=3).items)
    encoder = bench.embedder_of(collection)
    box = (8, 4, 50, 60)
    own = encoder.embed([Image.open(pictures[7])])[0]
    part = encoder.embed([Image.open(pictures[9]).crop(box)])[0]
    near = [Example(id=a), Example(image=pictures[7]), Example(image=pictures[9].read_bytes(), box=box)]
    away = [Example(vector=collection.get([b])[0].vector), Example(id=c)]
    found = search_by_examples(bench, "photos", near, away, 9)
    expected = search_like(collection, [a, own, part], [collection.get([b])[0].vector, c], 9)
    assert [match.id for match in found] == [match.id for match in expected]
    assert [match.score for match in found] == pytest.approx([match.score for match in expected], abs=1e-5)
    assert {a, c}.isdisjoint(match.id for match in found)


def test_ids_stay_ids_and_images_become_vectors(bench, pictures):
    given = [Example(id="a"), Example(image=pictures[0]), Example(vector=np.ones(3, np.float32))]
    first, second, third = embed_examples(bench, "photos", given)
    assert first == "a"
    assert np.linalg.norm(second) == pytest.approx(1, abs=1e-5)
    assert np.array_equal(third, np.ones(3))


def test_what_is_no_example_is_refused(bench):
    for wrong in ({}, {"id": "a", "vector": np.ones(3)}):
        with pytest.raises(InvalidRequest, match="exactly one"):
            Example(**wrong)
    with pytest.raises(InvalidRequest, match="goes with an image"):
        Example(id="a", box=(0, 0, 1, 1))
    with pytest.raises(InvalidRequest, match="1 to 1000"):
        search_by_examples(bench, "photos", [Example(id="a")], k=0)
    with pytest.raises(InvalidRequest, match="at least one positive"):
        search_by_examples(bench, "photos", [])
