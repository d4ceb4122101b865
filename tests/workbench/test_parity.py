"""Every field of SearchQuery and AddRequest can be set at every entry point."""

from dataclasses import fields

import typer

from nnclr_hub.cli.app import app
from nnclr_hub.workbench import Example, NewImage, SearchQuery
from serving.routes.items import ItemNote, NewItem
from serving.routes.search import Example as ExampleBody
from serving.routes.search import SearchRequest

QUERY = {field.name for field in fields(SearchQuery)}
EXAMPLE = {field.name for field in fields(Example)}
IMAGE = {field.name for field in fields(NewImage)}
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
