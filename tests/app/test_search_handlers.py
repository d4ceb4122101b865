"""SearchHandlers of the search tab without a browser, on items that have no images: what is to be shown after each."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from app.page import Page, Terms
from app.query import Query, Sample, action_of
from app.search_handlers import FIELDS, NOTHING, NOTHING_HERE, SearchHandlers
from app.widgets.uploaded import Uploaded
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench import Encoders, Workbench

SKIPPED = (gr.skip(),) * len(FIELDS)


@pytest.fixture
def bench(model, tmp_path) -> Iterator[Workbench]:
    """A workbench with 60 vectors in "points", without an encoder at work."""
    with open_store(str(tmp_path / "store")) as store:
        vectors = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        store.create("points", CollectionSpec(dim=4)).upsert([Item(f"p{i:02}", one) for i, one in enumerate(vectors)])
        yield Workbench(Encoders(str(model), device="cpu"), store)


@pytest.fixture
def steps(bench) -> SearchHandlers:
    return SearchHandlers(Page(bench))


def view(values: tuple[Any, ...]) -> dict[str, Any]:
    """What is shown, by its name; the first updates may be of the pickers."""
    return dict(zip(FIELDS, values[-len(FIELDS) :], strict=True))


def test_the_controls_show_the_query_of_a_link(steps):
    there = view(steps.start("collection=points&more=p00&k=5&pages=2&above=-0.5&where={}", {}, None))
    assert (there["k"], there["above"], there["where"]) == (5, "-0.5", "")
    assert len(there["hits"].hits) == 10
    chosen = view(steps.choose("points", {}, 5))
    assert (chosen["k"], chosen["above"], len(chosen["hits"].hits)) == (5, "", 5)


def test_a_field_that_was_only_visited_changes_nothing(steps):
    """Also after "Show more", and with a score that has more digits than are worth showing."""
    query = Query("points", more=(Sample(id="p00"),), k=7, pages=3, above=-0.123456789, where={})
    shown = view(steps.browse(query, {})) | view(steps.next(query, {}, 7))
    assert len(shown["hits"].hits) == 28
    visited = steps.change(shown["query"], {}, shown["k"], shown["above"], shown["where"])
    assert visited == SKIPPED
    changed = view(steps.change(shown["query"], {}, shown["k"], "0,25", shown["where"]))
    assert (changed["query"].above, changed["above"], changed["query"].number) == (0.25, "0.25", 28)
    fewer = view(steps.change(shown["query"], {}, 5, shown["above"], shown["where"]))
    assert fewer["query"].number == len(fewer["hits"].hits) == 5


@pytest.mark.parametrize(("k", "then"), [(24, 48), (12, 36), (50, 50), (100, 60)])
def test_more_is_more_whatever_the_number_at_a_time_became(steps, k, then):
    more = view(steps.next(Query("points", k=24), {}, k))
    assert len(more["hits"].hits) == then
    assert more["k"] == k


@pytest.mark.parametrize("link", ["k=0", "k=101", "pages=0", "pages=1001"])
def test_a_number_that_the_controls_do_not_have_is_refused(steps, link):
    with pytest.warns(UserWarning, match="is not possible: show 1 to 100 images at a time"):
        shown = view(steps.start(f"collection=points&more=p00&{link}", {}, None))
    assert shown["query"] == Query("points")


@pytest.mark.parametrize(("name", "lent"), [("cat.png", False), ("image.png", True), ("clipboard.png", True)])
def test_a_image_that_was_pasted_is_in_the_call_as_its_vector(steps, monkeypatch, tmp_path, name, lent):
    """For there is no such file at the person's side."""
    vector = base64.b64encode(np.ones(4, "<f4").tobytes()).decode()
    monkeypatch.setattr(steps.finder, "embedded", lambda collection, sample: replace(sample, vector=vector))
    Image.new("RGB", (8, 8)).save(tmp_path / name)
    query = view(steps.upload(Uploaded(tmp_path / name, name), Query("points"), {}, 24))["query"]
    action = action_of(query)
    assert action.files == (() if lent else (("image", name),))
    assert (vector in str(action.json)) is lent


def test_what_cannot_be_done_is_not_advised(bench):
    """On a read-only server nobody makes or fills a collection on the page."""
    bench.store.create("empty", CollectionSpec(dim=4))
    for read_only, way in ((False, "add images to it on the tab Collections"), (True, "its operator fills it")):
        steps = SearchHandlers(Page(bench, Terms(read_only=read_only)))
        assert view(steps.choose("empty", {}, 24))["status"] == f"**empty** is empty: {way}."
        assert view(steps.choose(None, {}, 24))["status"] == (NOTHING_HERE if read_only else NOTHING)
    assert "tab Collections" in NOTHING
    assert "tab Collections" not in NOTHING_HERE


@pytest.mark.parametrize(
    ("link", "is_one"),
    [
        ("more=p00", True),
        ("more=p00&more=p01", False),
        ("more=p00&less=p01", False),
        ("more=v:AACAPwAAAAAAAAAAAAAAAA", False),
    ],
)
def test_a_score_of_1_is_explained_only_where_it_is_the_same_image(steps, link, is_one):
    """Of a vector nobody knows whether it is of a whole image."""
    status = view(steps.start(f"collection=points&{link}", {}, None))["status"]
    assert "24 most similar of 60" in status
    assert ("a score of 1 is the same image" in status) is is_one


def test_a_tab_that_is_come_back_to_knows_the_collections_there_are_by_now(bench, steps):
    """What is searched stays; a collection that was filled, or has gone, or was chosen elsewhere, is shown anew."""

    def refreshed(there: dict[str, Any], kept: Any = None) -> tuple[list[str] | None, dict[str, Any]]:
        picker, _, *values = steps.refresh(there["query"], there["past"], there["hits"], kept)
        names = [str(one[0]) for one in picker.choices] if isinstance(picker, gr.Dropdown) else None
        return names, there if all(one == gr.skip() for one in values) else view(tuple(values))

    opening = {"query": Query(), "past": {}, "hits": None}
    assert refreshed(opening) == (None, opening)
    searched = view(steps.start("collection=points&more=p00", {}, None))
    bench.store.create("new", CollectionSpec(dim=4))
    names, there = refreshed(searched)
    assert (names, there) == (["points", "new"], searched)
    assert refreshed(searched, "points")[1] is searched
    assert refreshed(searched, "gone")[1] is searched
    assert refreshed(searched, "new")[1]["query"] == Query("new")
    empty = view(steps.choose("new", searched["past"], 24))
    bench.collection("new").upsert([Item("a", np.ones(4, np.float32))])
    filled = refreshed(empty)[1]
    assert [hit.id for hit in filled["hits"].hits] == ["a"]
    bench.collection("new").upsert([Item("b", np.ones(4, np.float32))])
    fuller = refreshed(filled)[1]
    assert "All 2 images" in fuller["status"]
    assert refreshed(fuller)[1] is fuller
    bench.drop("new")
    names, there = refreshed(fuller)
    assert (names, there["query"]) == (["points"], Query("points"))


def test_a_page_begins_with_its_link_or_else_the_collection_that_was_chosen_last(bench, steps):
    """Whatever a client says that it keeps; what is shown is what is kept from then on."""
    bench.store.create("new", CollectionSpec(dim=4))
    for fragment, kept, expected in (
        ("", None, "points"),
        ("", "new", "new"),
        ("k=5", "new", "new"),
        ("", "gone", "points"),
        ("", {"a": [1]}, "points"),
        ("collection=points", "new", "points"),
    ):
        picker, _, chosen, *_ = values = steps.start(fragment, {}, kept)
        assert (picker.value, chosen, view(values)["query"].collection) == (expected,) * 3
    with pytest.warns(UserWarning, match="no collection 'gone'"):
        assert steps.start("collection=gone", {}, "new")[2] == "new"
