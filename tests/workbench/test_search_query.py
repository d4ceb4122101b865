"""SearchQuery: its fields at every entry point, validation, its JSON form, and what it returns from a collection."""

import json
from dataclasses import fields as fields_of

import numpy as np
import pytest
import typer
from PIL import Image

from nnclr_hub.cli.app import app
from nnclr_hub.errors import ImageError, InvalidRequest, ItemNotFound, NNCLRHubError
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.store.queries import best_per_group, search_like
from nnclr_hub.workbench import Encoders, Example, NewImage, SearchQuery, Workbench
from nnclr_hub.workbench.search_query import run_each
from serving.routes.items import ItemNote, NewItem
from serving.routes.search import Example as ExampleBody
from serving.routes.search import SearchRequest

VECTOR = np.array([1, 0, 0], np.float32)


@pytest.fixture(scope="module")
def bench(model, photos, tmp_path_factory):
    with open_store(str(tmp_path_factory.mktemp("search") / "store")) as store:
        bench = Workbench(Encoders(str(model), device="cpu"), store)
        bench.index_folder("photos", photos)
        yield bench


def ids(matches) -> list[str]:
    return [match.id for match in matches]


def test_images_boxes_vectors_and_items_are_one_query(bench, image_files):
    """The result equals a search of the store with vectors that were embedded separately."""
    collection = bench.collection("photos")
    a, b, c = (item.id for item in collection.scroll(limit=3).items)
    encoder = bench.embedder_of(collection)
    box = (8, 4, 50, 60)
    whole = encoder.embed([Image.open(image_files[7])])[0]
    part = encoder.embed([Image.open(image_files[9]).crop(box)])[0]
    away = collection.get([b])[0].vector
    positive = [Example(id=a), Example(image=image_files[7]), Example(image=image_files[9].read_bytes(), box=box)]
    query = SearchQuery(positive, [Example(vector=away), Example(id=c)], 9)
    found = bench.search("photos", query)
    expected = search_like(collection, [a, whole, part], [away, c], 9)
    assert ids(found) == ids(expected)
    assert [match.score for match in found] == pytest.approx([match.score for match in expected], abs=1e-5)
    assert {a, c}.isdisjoint(ids(found))


def test_offset_skips_the_best_for_every_kind_of_query(bench, image_files):
    collection = bench.collection("photos")
    id = collection.scroll(limit=1).items[0].id
    vector = collection.get([id])[0].vector
    kinds = [{"vector": vector}, {"id": id}, {"image": image_files[3]}, {"vector": vector, "group_by": "path"}]
    for kind in kinds:
        everything = bench.search("photos", SearchQuery.of(**kind, k=9))
        assert ids(bench.search("photos", SearchQuery.of(**kind, k=4, offset=5))) == ids(everything)[5:]


def test_groups_leave_out_the_group_of_an_item_example(bench):
    collection = bench.collection("photos")
    [item] = collection.get([collection.scroll(limit=1).items[0].id])
    every = best_per_group(collection, item.vector, "label", 3)
    found = bench.search("photos", SearchQuery.of(id=item.id, group_by="label"))
    assert ids(found) == [match.id for match in every if match.id != item.id]
    with pytest.raises(ItemNotFound):
        bench.search("photos", SearchQuery.of(id="nobody", group_by="label"))


def test_many_queries_answer_as_each_does_alone(bench, image_files):
    """Errors that concern one query leave the others alone; equal options run as one batch."""
    collection = bench.collection("photos")
    vectors = [item.vector for item in collection.scroll(limit=4).items]
    good = [
        *(SearchQuery.of(vector=vector, k=3, offset=1) for vector in vectors),
        SearchQuery.of(image=image_files[0], box=(0, 0, 32, 32)),
        SearchQuery.of(id=collection.scroll(limit=1).items[0].id, where={"must": [{"key": "label", "match": "cat"}]}),
    ]
    bad = [SearchQuery.of(image=b"garbage"), SearchQuery.of(vector=VECTOR), SearchQuery.of(id="nobody")]
    answers = bench.search_each("photos", [*good, *bad])
    for query, answer in zip(good, answers, strict=False):
        assert ids(answer) == ids(bench.search("photos", query))
    assert [answer.code for answer in answers[len(good) :]] == [
        "unsupported_image", "invalid_request", "item_not_found"
    ]  # fmt: skip


def test_a_batch_with_a_vector_that_does_not_fit_still_answers_the_others(bench):
    collection = bench.collection("photos")
    vector = collection.scroll(limit=1).items[0].vector
    nan = np.full_like(vector, np.nan)
    answers = run_each(collection, [SearchQuery.of(vector=one) for one in (vector, nan, vector)])
    assert [isinstance(answer, NNCLRHubError) for answer in answers] == [False, True, False]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"positive": []},
        {"id": "a", "vector": [1.0]},
        {"id": "a", "positive": [{"id": "b"}]},
        {"positive": [{"id": "b"}], "box": [0, 0, 1, 1]},
        {"positive": [{}]},
        {"positive": ["a"]},
        {"positive": "a"},
        {"negative": [{"id": "a"}]},
        {"id": "a", "box": [0, 0, 1, 1]},
        {"id": "not possible!"},
        {"image": "***"},
        {"image": "YQ==", "box": [0, 0, 1]},
        {"image": "YQ==", "box": [0, 0, 1, float("nan")]},
        {"vector": [[1.0]]},
        {"vector": "YQ=="},
        {"vector": ["x"]},
        {"id": "a", "k": 0},
        {"id": "a", "k": 1001},
        {"id": "a", "k": True},
        {"id": "a", "offset": -1},
        {"id": "a", "offset": 995},
        {"id": "a", "effort": 0},
        {"id": "a", "score_threshold": "high"},
        {"id": "a", "exact": 1},
        {"id": "a", "where": {"most": []}},
        {"id": "a", "group_by": ""},
        {"positive": [{"id": "a"}, {"id": "b"}], "group_by": "label"},
        {"id": "a", "unknown": 1},
        {"positive": [{"id": "a", "k": 3}]},
    ],
)
def test_an_invalid_query_cannot_be_made(fields):
    with pytest.raises(InvalidRequest):
        SearchQuery.from_json(fields)


def test_the_json_form_holds_every_field(image_files):
    """A query survives its JSON form, in the short form and with several examples."""
    options = {"k": 3, "offset": 2, "where": {"must": [{"key": "label", "match": "cat"}]}, "exact": True}
    options |= {"score_threshold": 0.5, "with_vector": True, "effort": 40}
    short = SearchQuery.of(image=image_files[0], box=(1, 2, 30, 40), group_by="label", **options)
    several = SearchQuery([Example(id="a"), Example(vector=VECTOR)], ["b"], **options)
    for query in (short, several):
        body = json.loads(json.dumps(query.to_json()))
        again = SearchQuery.from_json(body)
        assert again.to_json() == body
    body = short.to_json()
    assert set(body) == {"image", "box", "group_by", *options}
    assert SearchQuery.from_json(body).positive[0].image == image_files[0].read_bytes()
    assert several.to_json()["positive"][0] == {"id": "a"}
    assert SearchQuery.of(id="a").to_json() == {"id": "a", "k": 10}
    assert "image" not in short.to_json(encode=lambda image: None)


def test_images_must_be_resolved_before_a_query_runs(bench, image_files):
    query = SearchQuery([Example(image=image_files[0]), Example(id="a")], [Example(image=image_files[1])])
    assert query.images() == [image_files[0], image_files[1]]
    with pytest.raises(InvalidRequest):
        query.run(bench.collection("photos"))
    resolved = query.resolve([VECTOR, -VECTOR])
    assert [example.id for example in resolved.examples] == [None, "a", None]
    assert np.array_equal(resolved.negative[0].vector, -VECTOR)
    with pytest.raises(ImageError):
        query.resolve([ImageError("broken"), VECTOR])


def test_a_box_off_the_image_is_refused(image_files):
    for box in ((70, 0, 90, 20), (0, 0, 64.5, 20), (-1, 0, 9, 9), (5, 5, 5, 9), (9, 9, 3, 3)):
        with pytest.raises(InvalidRequest):
            SearchQuery.of(image=image_files[0], box=box).images()


def test_plain_values_become_examples(bench, image_files):
    [item] = bench.collection("photos").scroll(limit=1).items
    query = SearchQuery([image_files[0], image_files[1].read_bytes()], [item.id, item.vector])
    images, others = query.positive, query.negative
    assert [example.image for example in images] == [image_files[0], image_files[1].read_bytes()]
    assert (others[0].id, others[1].vector is not None) == (item.id, True)


def test_a_collection_of_other_vectors_takes_no_images(bench, image_files):
    bench.store.create("elsewhere", CollectionSpec(4)).upsert([Item("a", np.ones(4, np.float32))])
    assert bench.search("elsewhere", SearchQuery.of(vector=np.ones(4)))[0].id == "a"
    with pytest.raises(InvalidRequest, match="by vector"):
        bench.search("elsewhere", SearchQuery.of(image=image_files[0]))
    bench.drop("elsewhere")


# ---- every field of SearchQuery and of NewImage can be set at every entry point

QUERY = {field.name for field in fields_of(SearchQuery)}
EXAMPLE = {field.name for field in fields_of(Example)}
IMAGE = {field.name for field in fields_of(NewImage)}
# options of the command line with another name than the field
SEARCH_OPTIONS = {"id": "ids", "image": "images", "vector": "vector_from"}
# -k takes 1000 matches, and a percentile costs nothing, so that nobody leaves them out
NO_OPTIONS = {"offset", "with_percentile"}
# `nnclr index` makes ids of paths, and metadata of paths, folders and files
INDEX_OPTIONS = {"id": "photos", "image": "photos", "metadata": "photos", "thumbnail": "thumbnails"}


def parameters(verb: str) -> set[str]:
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    return {parameter.name for parameter in command.params}


def test_the_convenience_constructor_takes_every_field():
    every = {"k": 3, "offset": 1, "exact": True, "with_vector": True, "with_percentile": True, "effort": 9}
    every |= {"score_threshold": 0.5, "group_by": "label", "where": {"must": [{"key": "n", "exists": True}]}}
    query = SearchQuery.of(image=b"x", box=(0, 0, 1, 1), **every)
    assert {name: getattr(query, name) for name in every} == every
    assert every.keys() | {"positive", "negative"} == QUERY


def test_the_command_line_and_rest_take_every_field_of_a_search():
    assert {SEARCH_OPTIONS.get(name, name) for name in (QUERY | EXAMPLE) - NO_OPTIONS} <= parameters("search")
    assert set(SearchRequest.model_fields) == QUERY | EXAMPLE
    assert set(ExampleBody.model_fields) == EXAMPLE


def test_every_entry_point_takes_every_field_of_an_image_to_add():
    assert set(NewItem.model_fields) == IMAGE
    assert set(ItemNote.model_fields) == IMAGE - {"image"}  # the image is a file of the form
    assert {INDEX_OPTIONS[name] for name in IMAGE} <= parameters("index")
