"""Steps of the search tab without a browser, on items that have no pictures: what is to be shown after each."""

from collections.abc import Iterator
from typing import Any

import gradio as gr
import numpy as np
import pytest

from app.page import Page
from app.queries import Query, Sample
from app.steps import FIELDS, Steps
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
def steps(bench) -> Steps:
    return Steps(Page(bench))


def view(values: tuple[Any, ...]) -> dict[str, Any]:
    """What is shown, by its name; the first updates may be of the pickers."""
    return dict(zip(FIELDS, values[-len(FIELDS) :], strict=True))


def test_the_controls_show_the_query_of_a_link(steps):
    there = view(steps.start("collection=points&more=p00&k=5&pages=2&above=-0.5&where={}", {}))
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
    with pytest.warns(UserWarning, match="is not possible: show 1 to 100 pictures at a time"):
        shown = view(steps.start(f"collection=points&more=p00&{link}", {}))
    assert shown["query"] == Query("points")
