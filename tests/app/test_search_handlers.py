"""Handlers of the Search tab without a browser, on items without images: the view after each action."""

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradio as gr
import numpy as np
import pytest
from PIL import Image

from app.page import Page, PageSettings
from app.query import Query, Sample, search_call
from app.search_handlers import FIELDS, NO_COLLECTION, NO_COLLECTION_READ_ONLY, SearchHandlers
from app.widgets.inputs import Uploaded
from nnclr_hub.store import open_store
from nnclr_hub.store.base import CollectionSpec, Item
from nnclr_hub.workbench import Encoders, Workbench

SKIPPED = (gr.skip(),) * len(FIELDS)


@pytest.fixture
def bench(model, tmp_path) -> Iterator[Workbench]:
    """A workbench with 60 vectors in "points"; its encoder is not loaded."""
    with open_store(str(tmp_path / "store")) as store:
        vectors = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        store.create("points", CollectionSpec(dim=4)).upsert([Item(f"p{i:02}", one) for i, one in enumerate(vectors)])
        yield Workbench(Encoders(str(model), device="cpu"), store)


@pytest.fixture
def handlers(bench) -> SearchHandlers:
    return SearchHandlers(Page(bench))


def view(values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the values by name; updates of the pickers may come first."""
    return dict(zip(FIELDS, values[-len(FIELDS) :], strict=True))


def count(shown: dict[str, Any]) -> int:
    return len(shown["results"].matches)


def test_the_controls_show_the_query_of_a_link(handlers):
    shown = view(handlers.start("collection=points&more=p00&k=5&pages=2&above=-0.5&where={}", {}, None))
    assert (shown["k"], shown["score_threshold"], shown["where"], count(shown)) == (5, "-0.5", "", 10)
    chosen = view(handlers.choose("points", {}, 5))
    assert (chosen["k"], chosen["score_threshold"], count(chosen)) == (5, "", 5)


def test_a_field_without_a_change_runs_no_search(handlers):
    """Also after "Show more", and with a score of many digits."""
    query = Query("points", positive=(Sample(id="p00"),), k=7, pages=3, score_threshold=-0.123456789, where={})
    shown = view(handlers.browse(query, {})) | view(handlers.next(query, {}, 7))
    assert count(shown) == 28
    inputs = shown["query"], {}, shown["k"]
    assert handlers.change(*inputs, shown["score_threshold"], shown["where"]) == SKIPPED
    changed = view(handlers.change(*inputs, "0,25", shown["where"]))
    assert (changed["query"].score_threshold, changed["score_threshold"]) == (0.25, "0.25")
    assert changed["query"].number == 28
    fewer = view(handlers.change(shown["query"], {}, 5, shown["score_threshold"], shown["where"]))
    assert fewer["query"].number == count(fewer) == 5


@pytest.mark.parametrize(("k", "then"), [(24, 48), (12, 36), (50, 50), (100, 60)])
def test_show_more_adds_results_after_a_change_of_k(handlers, k, then):
    more = view(handlers.next(Query("points", k=24), {}, k))
    assert (count(more), more["k"]) == (then, k)


@pytest.mark.parametrize("link", ["k=0", "k=101", "pages=0", "pages=1001", "where={%22must%22:3}", "less=p01"])
def test_a_link_outside_of_the_limits_shows_the_collection(handlers, link):
    with pytest.warns(UserWarning, match="."):
        shown = view(handlers.start(f"collection=points&more={'' if 'less' in link else 'p00'}&{link}", {}, None))
    assert shown["query"] == Query("points")


@pytest.mark.parametrize(("name", "unsaved"), [("cat.png", False), ("image.png", True), ("clipboard.png", True)])
def test_the_call_contains_the_vector_of_a_pasted_image(handlers, monkeypatch, tmp_path, name, unsaved):
    """The user has no file of a pasted image to upload."""
    vector = base64.b64encode(np.ones(4, "<f4").tobytes()).decode()
    monkeypatch.setattr(handlers.finder, "embed", lambda collection, sample: replace(sample, vector=vector))
    Image.new("RGB", (8, 8)).save(tmp_path / name)
    query = view(handlers.upload(Uploaded(tmp_path / name, name), Query("points"), {}, 24))["query"]
    call = search_call(query)
    assert call.files == (() if unsaved else (("image", name),))
    assert (vector in str(call.json)) is unsaved


def test_a_read_only_page_does_not_suggest_to_add_images(bench):
    bench.store.create("empty", CollectionSpec(dim=4))
    for read_only in (False, True):
        handlers = SearchHandlers(Page(bench, PageSettings(read_only=read_only)))
        assert ("Collections tab" in view(handlers.choose("empty", {}, 24))["status"]) is not read_only
        status = view(handlers.choose(None, {}, 24))["status"]
        assert status == (NO_COLLECTION_READ_ONLY if read_only else NO_COLLECTION)


@pytest.mark.parametrize(
    ("link", "one_image"),
    [("p00", True), ("p00&more=p01", False), ("p00&less=p01", False), ("v:AACAPwAAAAAAAAAAAAAAAA", False)],
)
def test_a_score_of_1_is_explained_only_for_one_whole_image(handlers, link, one_image):
    """A vector may be that of a region."""
    status = view(handlers.start(f"collection=points&more={link}", {}, None))["status"]
    assert "24 most similar of 60" in status
    assert ("same image" in status) is one_image


def test_selecting_the_tab_shows_changed_collections_and_keeps_searches(bench, handlers):
    def refreshed(before: dict[str, Any], stored: Any = None) -> tuple[list[str] | None, dict[str, Any]]:
        picker, _, *values = handlers.refresh(before["query"], before["history"], before["results"], stored)
        names = [str(one[0]) for one in picker.choices] if isinstance(picker, gr.Dropdown) else None
        return names, before if all(one == gr.skip() for one in values) else view(tuple(values))

    opening = {"query": Query(), "history": {}, "results": None}
    assert refreshed(opening) == (None, opening)
    searched = view(handlers.start("collection=points&more=p00", {}, None))
    bench.store.create("new", CollectionSpec(dim=4))
    assert refreshed(searched) == (["points", "new"], searched)
    assert refreshed(searched, "points")[1] is searched
    assert refreshed(searched, "gone")[1] is searched
    assert refreshed(searched, "new")[1]["query"] == Query("new")
    empty = view(handlers.choose("new", searched["history"], 24))
    bench.collection("new").upsert([Item("a", np.ones(4, np.float32))])
    filled = refreshed(empty)[1]
    assert [match.id for match in filled["results"].matches] == ["a"]
    bench.collection("new").upsert([Item("b", np.ones(4, np.float32))])
    fuller = refreshed(filled)[1]
    assert count(fuller) == 2
    assert refreshed(fuller)[1] is fuller
    bench.drop("new")
    names, shown = refreshed(fuller)
    assert (names, shown["query"]) == (["points"], Query("points"))


def test_the_page_opens_with_its_link_or_the_last_collection(bench, handlers):
    """A client can send anything as the stored collection."""
    bench.store.create("new", CollectionSpec(dim=4))
    for fragment, stored, expected in (
        ("", None, "points"),
        ("", "new", "new"),
        ("k=5", "new", "new"),
        ("", "gone", "points"),
        ("", {"a": [1]}, "points"),
        ("collection=points", "new", "points"),
    ):
        picker, _, chosen, *_ = values = handlers.start(fragment, {}, stored)
        assert (picker.value, chosen, view(values)["query"].collection) == (expected,) * 3
    with pytest.warns(UserWarning, match="gone"):
        assert handlers.start("collection=gone", {}, "new")[2] == "new"
