"""Queries as links and as REST calls."""

import base64
from pathlib import Path

import numpy as np
import pytest

from app.query import MAX_SAMPLES, Query, Sample, read_fragment, search_call
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.workbench import SearchQuery

MANY = "&".join(["more=a"] * (MAX_SAMPLES + 20))
VECTOR = base64.b64encode(np.linspace(-1, 1, 5, dtype="<f4").tobytes()).decode()


def test_a_link_restores_its_query():
    query = Query(
        "my.photos~2",
        positive=(Sample(id="a-b_c.~1"), Sample(vector=VECTOR)),
        negative=(Sample(id="z"),),
        k=48,
        pages=3,
        where={"must": [{"key": "label & more", "match": "c#t/é"}]},
        score_threshold=-0.123456789,
    )
    assert query.fragment().startswith("collection=my.photos~2&more=a-b_c.~1&more=v:"), "links of old releases work"
    assert read_fragment("#" + query.fragment()) == query
    vector = read_fragment(query.fragment()).positive[1].to_example().vector
    assert np.array_equal(vector, np.linspace(-1, 1, 5, dtype=np.float32))
    assert read_fragment("") == Query()


def test_a_link_contains_no_path_and_a_box_as_its_vector():
    uploaded = Sample(path=Path("/srv/uploads/cat.jpg"), name="cat.jpg", vector=VECTOR)
    boxed = Sample(id="a", box=(0, 0, 5, 5), vector=VECTOR)
    link = Query("photos", positive=(uploaded, boxed)).fragment()
    assert "cat" not in link
    assert read_fragment(link).positive == (Sample(vector=VECTOR), Sample(vector=VECTOR))


@pytest.mark.parametrize(
    "fragment",
    [
        "more=",
        "more=a/b",
        "more=v:",
        "more=v:AAA",
        "more=v:!!!!",
        "k=many",
        "where={",
        "where=[1]",
        "above=nan",
        "color=red",
        MANY,
    ],
)
def test_a_malformed_link_is_rejected(fragment):
    with pytest.raises(InvalidRequest):
        read_fragment(fragment)


def test_a_query_has_an_equivalent_rest_call():
    by_id = search_call(Query("photos", positive=(Sample(id="a"),), k=5))
    assert (by_id.method, by_id.path) == ("POST", "/api/v1/collections/photos/search")
    assert by_id.json == {"k": 5, "id": "a"}
    assert by_id.call == "client.collection('photos').search(id='a', k=5)"
    own = Sample(path=Path("/tmp/x/cat.jpg"), name="cat.jpg", vector=VECTOR, box=(1, 2, 3, 4))
    by_image = search_call(Query("photos", positive=(own,), score_threshold=0.5))
    assert by_image.files == (("image", "cat.jpg"),)
    assert by_image.form == {"query": {"box": [1, 2, 3, 4], "k": 24, "score_threshold": 0.5}}
    several = Query("photos", positive=(own, Sample(id="a")), negative=(Sample(id="b"),))
    body = search_call(several).json
    assert body == {"k": 24, "positive": [{"vector": VECTOR}, {"id": "a"}], "negative": [{"id": "b"}]}
    assert SearchQuery.from_json(body).to_json() == several.to_search().to_json()
    assert search_call(Query("photos")).target == "/api/v1/collections/photos/items?limit=24"
