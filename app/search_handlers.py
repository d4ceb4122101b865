"""SearchHandlers: the actions on the Search tab that change its query.

Each handler takes the query that is shown, and returns the new view as a tuple in the order of FIELDS.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import gradio as gr

from nnclr_hub.errors import InvalidRequest, NNCLRHubError

from .api_calls import delete_call
from .filters import read_where, with_condition
from .finder import Finder, Results
from .gallery import examples
from .handlers import error_text, escape_markdown
from .page import Page
from .query import Query, Sample, read_fragment, search_call
from .widgets.drawing import checked_box, data_uri, image_value
from .widgets.inputs import Uploaded
from .widgets.tiles import Tile, thumbnail_path, tile, tiles_value

MAX_HISTORY = 50  # queries whose uploaded images are still there when the browser goes back
MAX_DELETED = 1000
NO_COLLECTION = (
    "There is no collection to search yet. **Create a collection** of your images on the Collections tab. You can also "
    "stop the server and run `nnclr index PHOTOS --collection photos` on its machine."
)
NO_COLLECTION_READ_ONLY = (
    "There is no collection to search yet. This server is read-only; its operator can run `nnclr index`."
)
UNNAMED = re.compile(r"(clipboard|image|sample|webcam)\.\w+")  # names that browsers and Gradio give to pasted images
NO_IMAGE = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9'%3E%3C/svg%3E"
QUERY_IMAGE = ("picker", "drawing", "another", "browse")  # the components for the image to search by
# the components that a handler updates, by their attributes of the tab
FIELDS = ("query", "history", "results", "status", "tiles", "next", "samples", *QUERY_IMAGE)
FIELDS += ("k", "score_threshold", "where", "address")


class SearchHandlers:
    """Handle the events of the Search tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.finder = Finder(page)

    # ---- open the tab, or choose a collection

    def start(self, fragment: str, history: dict[str, Query], stored_collection: Any) -> tuple[Any, ...]:
        """Show the query of the link, else the collection that was chosen last."""
        names = self.finder.names()
        query, shown = self._open_link(fragment if isinstance(fragment, str) else "", history, stored_collection)
        keys = self.finder.keys(query.collection) if query.collection in names else []
        picker = gr.Dropdown(choices=names, value=query.collection or None)
        return picker, gr.Dropdown(choices=keys), query.collection or None, *shown

    def choose(self, collection: str | None, history: dict[str, Query], k: float) -> tuple[Any, ...]:
        """Show another collection."""
        query = Query(collection or "", k=int(k))
        keys = self.finder.keys(query.collection) if query.collection else []
        return gr.Dropdown(choices=keys, value=None), collection, *self._show(query, history)

    def refresh(
        self, query: Query, history: dict[str, Query], results: Results, stored_collection: Any
    ) -> tuple[Any, ...]:
        """Update the tab when it is selected: other tabs may have changed the collections.

        Results of a search in the chosen collection stay. A list of the collection is shown again if the number of
        items has changed.
        """
        if not history:  # the page is still opening
            return (gr.skip(),) * (len(FIELDS) + 2)
        names = self.finder.names()
        chosen = self.finder.choose_collection(stored_collection, query.collection)
        if query.collection != chosen:
            query = Query(chosen, k=query.k)
        elif results.matches and (results.scored or results.count == self._page.bench.collection(chosen).count()):
            return gr.Dropdown(choices=names), *(gr.skip(),) * (len(FIELDS) + 1)
        keys = self.finder.keys(query.collection) if names else []
        shown = self._show(query, history, keep_drawing=bool(query.positive))
        return gr.Dropdown(choices=names, value=query.collection or None), gr.Dropdown(choices=keys), *shown

    def browse(self, query: Query, history: dict[str, Query]) -> tuple[Any, ...]:
        """Remove the examples, and keep the filter."""
        return self._show(replace(query, positive=(), negative=(), score_threshold=None), history)

    def reopen(self, history: dict[str, Query], stored_collection: Any, event: gr.EventData) -> tuple[Any, ...]:
        """Show the query of a history entry, with its image if this session still has it."""
        query, shown = self._open_link(str(event.fragment), history, stored_collection)
        return gr.Dropdown(value=query.collection or None), query.collection or None, *shown

    # ---- choose the examples

    def upload(self, file: Uploaded | None, query: Query, history: dict[str, Query], k: float) -> tuple[Any, ...]:
        """Search by an uploaded image."""
        if file is None:  # this page emptied the picker, to show the image as a drawing
            return (gr.skip(),) * len(FIELDS)
        sample = Sample(path=file.path, name=file.name, unsaved=bool(UNNAMED.fullmatch(file.name)))
        return self._by_image(sample, query, history, k)

    def try_example(self, query: Query, history: dict[str, Query], k: float, event: gr.EventData) -> tuple[Any, ...]:
        """Search by an example photo."""
        path = examples().get(str(event.id))
        if path is None:
            raise InvalidRequest(f"There is no example {str(event.id)!r:.40}. Choose one that is shown.")
        return self._by_image(Sample(path=path, name=path.name, unsaved=True), query, history, k)

    def box(self, query: Query, history: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """Search by a region of the image, or by the whole image again."""
        if len(query.positive) != 1:
            raise InvalidRequest("There is no image to draw a box on. Choose an image first.")
        box = checked_box(event.box)
        sample = self.finder.embed(query.collection, replace(query.positive[0], box=box, vector=None))
        return self._show(replace(query, positive=(sample,)), history, keep_drawing=True)

    def open(self, query: Query, history: dict[str, Query], k: float, event: gr.EventData) -> tuple[Any, ...]:
        """Search by the image that was clicked."""
        clicked = (Sample(id=str(event.id)),)
        return self._show(replace(query, positive=clicked, negative=(), k=int(k), pages=1), history)

    def more(self, query: Query, history: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """Add a positive example."""
        return self._show(replace(query, positive=(*query.positive, Sample(id=str(event.id)))), history)

    def less(self, query: Query, history: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """Add a negative example."""
        return self._show(replace(query, negative=(*query.negative, Sample(id=str(event.id)))), history)

    def remove(self, query: Query, history: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """Remove an example; with the last positive one, remove the negative ones too."""
        side, _, place = str(event.id).partition(":")
        sides = {"positive": query.positive, "negative": query.negative}
        if side not in sides or not place.isdecimal():
            raise InvalidRequest(f"There is no example {str(event.id)!r:.40} to remove.")
        sides[side] = tuple(one for i, one in enumerate(sides[side]) if i != int(place[:4]))
        return self._show(_with_examples(query, **sides), history)

    # ---- filter and page

    def change(
        self, query: Query, history: dict[str, Query], k: float, score_threshold: str, where: str
    ) -> tuple[Any, ...]:
        """Apply the number per page, the minimum score and the filter; do nothing if none of them changed."""
        changed = replace(query, k=int(k), score_threshold=_parse_score(score_threshold), where=read_where(where))
        if changed == replace(query, where=query.where or None):
            return (gr.skip(),) * len(FIELDS)
        return self._show(replace(changed, pages=query.pages if changed.k == query.k else 1), history)

    def add_filter(
        self, query: Query, history: dict[str, Query], key: str | None, relation: str, value: str
    ) -> tuple[Any, ...]:
        """Add a condition to the filter."""
        return self._show(replace(query, where=with_condition(query.where, key or "", relation, value)), history)

    def clear_filter(self, query: Query, history: dict[str, Query]) -> tuple[Any, ...]:
        return self._show(replace(query, where=None), history)

    def next(self, query: Query, history: dict[str, Query], k: float) -> tuple[Any, ...]:
        """Show one more page of results."""
        k = max(1, int(k))
        return self._show(replace(query, k=k, pages=query.number // k + 1), history, keep_drawing=True)

    def delete(self, query: Query, history: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """Delete the selected images, and show the remaining results."""
        ids = [id for id in event.ids if isinstance(id, str)][:MAX_DELETED]
        count = self._page.bench.delete(query.collection, ids)
        gr.Info(f"Deleted {count} {'image' if count == 1 else 'images'} from {query.collection}.")
        sides = {"positive": query.positive, "negative": query.negative}
        sides = {side: tuple(one for one in samples if one.id not in ids) for side, samples in sides.items()}
        values = self._show(_with_examples(query, **sides), history)
        if ids:
            self._page.note(delete_call(query.collection, ids))  # replaces the search that shows the remaining results
        return values

    # ---- the view

    def _open_link(
        self, fragment: str, history: dict[str, Query], stored_collection: Any
    ) -> tuple[Query, tuple[Any, ...]]:
        """Return the query of a link and its view; for a dead link, those of the current collection."""
        fallback = Query(self.finder.choose_collection(stored_collection))
        try:
            query = history.get(fragment.removeprefix("#")) or read_fragment(fragment)
            query = query if query.collection else replace(query, collection=fallback.collection)
            return query, self._show(query, history)
        except NNCLRHubError as error:
            gr.Warning(error_text(error), title="The link does not work")
            return fallback, self._show(fallback, history)

    def _by_image(self, sample: Sample, query: Query, history: dict[str, Query], k: float) -> tuple[Any, ...]:
        if not query.collection:
            if self.finder.names():  # the page is still opening, or its session ended with the server
                raise InvalidRequest("No collection is selected. Wait until the page has loaded, or select one.")
            hint = (
                "Create one on the Collections tab." if self._page.writable else "The server's operator can create one."
            )
            raise InvalidRequest(f"There is no collection to search yet. {hint}")
        sample = self.finder.embed(query.collection, sample)
        return self._show(replace(query, positive=(sample,), negative=(), k=int(k), pages=1), history)

    def _show(self, query: Query, history: dict[str, Query], *, keep_drawing: bool = False) -> tuple[Any, ...]:
        """Run the query and return the view.

        Args:
            keep_drawing: leave the drawing as it is, since its image has not changed.
        """
        results = self.finder.find(query) if query.collection else Results([], scored=False, has_more=False)
        link = query.fragment()
        if query.collection:
            self._page.note(search_call(query))
        tiles = [
            tile(query.collection, match.id, match.metadata, match.score if results.scored else None)
            for match in results.matches
        ]
        values: dict[str, Any] = {
            "query": query,
            "history": dict([*history.items(), (link, query)][-MAX_HISTORY:]),
            "results": results,
            "status": self._status(query, results),
            "tiles": tiles_value(tiles),
            "next": gr.update(visible=results.has_more),
            "samples": tiles_value(self._sample_tiles(query)),
            "k": query.k,
            "score_threshold": "" if query.score_threshold is None else str(query.score_threshold),
            "where": json.dumps(query.where, indent=1) if query.where else "",
            "address": link,
            **(dict.fromkeys(QUERY_IMAGE, gr.skip()) if keep_drawing else self._query_image(query)),
        }
        return tuple(values[name] for name in FIELDS)

    def _query_image(self, query: Query) -> dict[str, Any]:
        """Return updates of QUERY_IMAGE: the image to draw on, or the place to upload one."""
        value = None
        if len(query.positive) == 1 and self.finder.has_image(query.collection, query.positive[0]):
            sample = query.positive[0]
            value = image_value(self.finder.image(query.collection, sample), box=sample.box)
        return {
            "picker": gr.update(value=None, visible=not query.positive),
            "drawing": gr.update(value=value, visible=value is not None),
            "another": gr.update(visible=bool(query.positive)),
            "browse": gr.update(visible=bool(query.positive)),
        }

    def _sample_tiles(self, query: Query) -> list[Tile]:
        """Return tiles of the examples if there are several, or if one has no image to draw on."""
        several = len(query.positive) + len(query.negative) > 1
        if not several and all(self.finder.has_image(query.collection, one) for one in query.positive):
            return []
        sides = [("positive", "+", query.positive), ("negative", "\N{MINUS SIGN}", query.negative)]
        return [
            self._sample_tile(f"{side}:{i}", sign, query.collection, one)
            for side, sign, samples in sides
            for i, one in enumerate(samples)
        ]

    def _sample_tile(self, key: str, sign: str, collection: str, sample: Sample) -> Tile:
        name, source = sample.name or "an image", NO_IMAGE
        if sample.id is not None:
            name = tile(collection, sample.id, self.finder.metadata(collection, sample.id)).caption
        if self.finder.has_image(collection, sample):
            is_item = sample.id is not None
            source = thumbnail_path(collection, sample.id or "") if is_item else self._preview(collection, sample)
        return Tile(key, source, f"{sign} {name}")

    def _preview(self, collection: str, sample: Sample) -> str:
        return data_uri(self.finder.image(collection, sample), 128)

    def _status(self, query: Query, results: Results) -> str:
        if not query.collection:
            return NO_COLLECTION if self._page.writable else NO_COLLECTION_READ_ONLY
        name, count = escape_markdown(query.collection), f"{results.count:,}"
        if not results.count:
            hint = "Add images on the Collections tab." if self._page.writable else "The server's operator can fill it."
            return f"**{name}** is empty. {hint}"
        if not results.matches:
            return f"No image in **{name}** passes the filter and the minimum score. Change or clear them."
        total = f"{count} images in **{name}**"
        if results.passing is not None:
            total = f"{results.passing:,} images that pass the filter (of {total})"
        if results.scored:
            status = f"The {len(results.matches)} most similar of {total}"
            return f"{status}. A score of 1 means the same image." if _is_one_image(query) else f"{status}."
        available = results.count if results.passing is None else results.passing
        status = f"All {total}" if len(results.matches) == available else f"{len(results.matches)} of the {total}"
        return f"{status}. Click an image to find similar ones, or upload your own."


def _with_examples(query: Query, positive: tuple[Sample, ...], negative: tuple[Sample, ...]) -> Query:
    """Return the query with other examples; negative ones alone cannot be searched by."""
    return replace(query, positive=positive, negative=negative if positive else ())


def _is_one_image(query: Query) -> bool:
    """Return whether the query is one whole image; the vector of a link may be that of a region."""
    if len(query.positive) != 1 or query.negative:
        return False
    [one] = query.positive
    return one.box is None and (one.id is not None or one.path is not None)


def _parse_score(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        score = float(text.replace(",", "."))
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InvalidRequest(f"The minimum score must be a number such as 0.8, or empty; got {text!r:.40}.")
    return score
