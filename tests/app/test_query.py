"""Queries as links and as REST calls."""

import base64
from pathlib import Path

import numpy as np
import pytest

from app.query import MOST_SAMPLES, Query, Sample, action_of, read_fragment
from nnclr_hub.errors import InvalidRequest

VECTOR = base64.b64encode(np.linspace(-1, 1, 5, dtype="<f4").tobytes()).decode()


def test_a_query_comes_back_from_its_link():
    query = Query(
        "my.photos~2",
        more=(Sample(id="a-b_c.~1"), Sample(vector=VECTOR)),
        less=(Sample(id="z"),),
        k=48,
        pages=3,
        where={"must": [{"key": "label & more", "match": "c#t/é"}]},
        above=-0.123456789,
    )
    assert read_fragment("#" + query.fragment()) == query
    assert np.array_equal(read_fragment(query.fragment()).more[1].array(), np.linspace(-1, 1, 5, dtype=np.float32))
    assert read_fragment("") == Query()


def test_a_link_holds_no_path_and_a_box_as_its_vector():
    """Who gets it sees neither the file nor the server."""
    uploaded = Sample(path=Path("/srv/uploads/cat.jpg"), name="cat.jpg", vector=VECTOR)
    boxed = Sample(id="a", box=(0, 0, 5, 5), vector=VECTOR)
    link = Query("photos", more=(uploaded, boxed)).fragment()
    assert "cat" not in link
    assert read_fragment(link).more == (Sample(vector=VECTOR), Sample(vector=VECTOR))


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
        "above=much",
        "colour=red",
        "nonsense",
        "&".join(["more=a"] * (MOST_SAMPLES + 20)),
    ],
)
def test_a_link_that_cannot_be_read_is_one_sentence(fragment):
    with pytest.raises(InvalidRequest) as refusal:
        read_fragment(fragment)
    assert str(refusal.value).count(". ") == 0


def test_a_query_is_the_rest_call_that_finds_the_same():
    by_id = action_of(Query("photos", more=(Sample(id="a"),), k=5))
    assert (by_id.method, by_id.path) == ("POST", "/api/v1/collections/photos/search")
    assert by_id.json == {"k": 5, "id": "a"}
    assert by_id.call == "client.collection('photos').search(id='a', k=5)"
    own = Sample(path=Path("/tmp/x/cat.jpg"), name="cat.jpg", vector=VECTOR, box=(1, 2, 3, 4))
    by_image = action_of(Query("photos", more=(own,), above=0.5))
    assert by_image.files == (("image", "cat.jpg"),)
    assert by_image.form == {"query": {"box": [1, 2, 3, 4], "k": 24, "score_threshold": 0.5}}
    several = action_of(Query("photos", more=(own, Sample(id="a")), less=(Sample(id="b"),)))
    assert several.json == {"k": 24, "positive": [{"vector": VECTOR}, {"id": "a"}], "negative": [{"id": "b"}]}
    assert action_of(Query("photos")).path == "/api/v1/collections/photos/items?limit=24"
