"""Steps: what happens on the search tab, from one query to the next.

Each step takes the query that is shown and gives what is to be shown, in the order of `View`'s fields: the tab says
which component each of them is.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields, replace
from typing import Any

import gradio as gr

from nnclr_hub.errors import InvalidRequest, NNCLRHubError

from .actions import deletion
from .asked import ASKED, asked, sample_tiles
from .filters import read_where, with_condition
from .finding import Finder, Found
from .gallery import examples
from .handling import shown_text
from .page import Page
from .queries import Box, Query, Sample, action_of, read_fragment
from .widgets.drawing import checked_box
from .widgets.tiles import shown, tile
from .widgets.uploaded import Uploaded

REMEMBERED = 50  # queries that Back finds with their images
NOTHING = (
    "There is nothing to search yet. **Make a collection** of your images on the tab Collections, or on this machine "
    "with `nnclr index PHOTOS --collection photos` while the server is stopped."
)
NOTHING_HERE = (
    "There is nothing to search, and this server is read-only: its operator makes a collection with `nnclr index`."
)
UNNAMED = re.compile(r"(clipboard|image|sample|webcam)\.\w+")  # what browsers and Gradio call what is pasted or taken


@dataclass(frozen=True)
class View:
    """What the tab shows: values or updates of its components, by the names that they have there."""

    query: Any
    past: Any
    hits: Any
    status: Any
    tiles: Any
    next: Any
    samples: Any
    picker: Any
    drawing: Any
    another: Any
    browse: Any
    k: Any
    above: Any
    where: Any
    address: Any


FIELDS = tuple(one.name for one in fields(View))


class Steps:
    """See the module.

    Args:
        page: whose workbench is searched.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self.finder = Finder(page)

    # ---- where to begin

    def start(self, fragment: str, past: dict[str, Query], kept_collection: Any) -> tuple[Any, ...]:
        """The link that was opened, or else the collection that was chosen last; and those to choose from."""
        names = self.finder.names()
        query, shown = self._linked(fragment if isinstance(fragment, str) else "", past, kept_collection)
        keys = self.finder.keys(query.collection) if query.collection in names else []
        picked = gr.Dropdown(choices=names, value=query.collection or None)
        return picked, gr.Dropdown(choices=keys), query.collection or None, *shown

    def choose(self, collection: str | None, past: dict[str, Query], k: float) -> tuple[Any, ...]:
        """Another collection, as it is; and its metadata keys."""
        query = Query(collection or "", k=int(k))
        keys = self.finder.keys(query.collection) if query.collection else []
        return gr.Dropdown(choices=keys, value=None), collection, *self._shown(query, past)

    def refresh(self, query: Query, past: dict[str, Query], found: Found, kept_collection: Any) -> tuple[Any, ...]:
        """The collections that there are by now, and of them the one that was chosen meanwhile on another tab.

        A search in it that is shown stays; a collection without one is shown anew if it holds more, or less, than
        before.
        """
        if not past:  # the page is only opening
            return (gr.skip(),) * (len(FIELDS) + 2)
        names = self.finder.names()
        chosen = self.finder.chosen(kept_collection, query.collection)
        if query.collection != chosen:
            query = Query(chosen, k=query.k)
        elif found.hits and (found.scored or found.count == self._page.bench.collection(query.collection).count()):
            return gr.Dropdown(choices=names), *(gr.skip(),) * (len(FIELDS) + 1)
        keys = self.finder.keys(query.collection) if names else []
        shown = self._shown(query, past, keep_drawing=bool(query.more))
        return gr.Dropdown(choices=names, value=query.collection or None), gr.Dropdown(choices=keys), *shown

    def browse(self, query: Query, past: dict[str, Query]) -> tuple[Any, ...]:
        """The collection without a search, filtered as it was."""
        return self._shown(replace(query, more=(), less=(), above=None), past)

    def reopen(self, past: dict[str, Query], kept_collection: Any, event: gr.EventData) -> tuple[Any, ...]:
        """The query of a link that the browser went back to, with its image if this session has it."""
        query, shown = self._linked(str(event.fragment), past, kept_collection)
        return gr.Dropdown(value=query.collection or None), query.collection or None, *shown

    # ---- what to search by

    def upload(self, given: Uploaded | None, query: Query, past: dict[str, Query], k: float) -> tuple[Any, ...]:
        """An image of one's own."""
        if given is None:  # taken away by us, when it was shown as a drawing
            return (gr.skip(),) * len(FIELDS)
        sample = Sample(path=given.path, name=given.name, lent=bool(UNNAMED.fullmatch(given.name)))
        return self._by_image(sample, query, past, k)

    def try_example(self, query: Query, past: dict[str, Query], k: float, event: gr.EventData) -> tuple[Any, ...]:
        """One of the photos that are there for it."""
        path = examples().get(str(event.id))
        if path is None:
            raise InvalidRequest("There is no such example: choose one of those that are shown.")
        return self._by_image(Sample(path=path, name=path.name, lent=True), query, past, k)

    def box(self, query: Query, past: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """A box on the image, or the whole of it again."""
        if len(query.more) != 1:
            raise InvalidRequest("There is no image to draw a box on: give one before.")
        box: Box | None = checked_box(event.box)
        sample = self.finder.embedded(query.collection, replace(query.more[0], box=box, vector=None))
        return self._shown(replace(query, more=(sample,)), past, keep_drawing=True)

    def open(self, query: Query, past: dict[str, Query], k: float, event: gr.EventData) -> tuple[Any, ...]:
        """The neighbors of an image that was clicked."""
        return self._shown(replace(query, more=(Sample(id=str(event.id)),), less=(), k=int(k), pages=1), past)

    def more(self, query: Query, past: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """More like this as well."""
        return self._shown(replace(query, more=(*query.more, Sample(id=str(event.id)))), past)

    def less(self, query: Query, past: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """Less like this."""
        return self._shown(replace(query, less=(*query.less, Sample(id=str(event.id)))), past)

    def remove(self, query: Query, past: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """One of the examples goes; without one to be near to, those to be away from go as well."""
        side, _, place = str(event.id).partition(":")
        sides = {"more": query.more, "less": query.less}
        if side not in sides or not place.isdecimal():
            raise InvalidRequest("There is no such example to remove.")
        sides[side] = tuple(one for i, one in enumerate(sides[side]) if i != int(place[:4]))
        return self._shown(replace(query, more=sides["more"], less=sides["less"] if sides["more"] else ()), past)

    # ---- how

    def change(self, query: Query, past: dict[str, Query], k: float, above: str, where: str) -> tuple[Any, ...]:
        """Another number, another least score, another filter; nothing, if a field was only visited."""
        asked = replace(query, k=int(k), above=_score(above), where=read_where(where))
        if asked == replace(query, where=query.where or None):
            return (gr.skip(),) * len(FIELDS)
        return self._shown(replace(asked, pages=query.pages if asked.k == query.k else 1), past)

    def add_filter(
        self, query: Query, past: dict[str, Query], key: str | None, relation: str, value: str
    ) -> tuple[Any, ...]:
        """One condition more."""
        return self._shown(replace(query, where=with_condition(query.where, key or "", relation, value)), past)

    def clear_filter(self, query: Query, past: dict[str, Query]) -> tuple[Any, ...]:
        return self._shown(replace(query, where=None), past)

    def next(self, query: Query, past: dict[str, Query], k: float) -> tuple[Any, ...]:
        """As many again."""
        k = max(1, int(k))
        return self._shown(replace(query, k=k, pages=query.number // k + 1), past, keep_drawing=True)

    def delete(self, query: Query, past: dict[str, Query], event: gr.EventData) -> tuple[Any, ...]:
        """Deletes what is selected, and shows the rest."""
        ids = [id for id in event.ids if isinstance(id, str)][:1000]
        count = self._page.bench.delete(query.collection, ids)
        gr.Info(f"{count} {'picture is' if count == 1 else 'pictures are'} deleted from {query.collection}.")
        left = {"more": query.more, "less": query.less}
        left = {side: tuple(one for one in samples if one.id not in ids) for side, samples in left.items()}
        values = self._shown(replace(query, more=left["more"], less=left["less"] if left["more"] else ()), past)
        if ids:
            self._page.did(deletion(query.collection, ids))  # in place of the search that shows the rest
        return values

    # ---- inside

    def _linked(self, fragment: str, past: dict[str, Query], kept_collection: Any) -> tuple[Query, tuple[Any, ...]]:
        """The query of a link and what is shown of it; where it leads nowhere any more, of the collection at hand."""
        at_hand = Query(self.finder.chosen(kept_collection))
        try:
            query = past.get(fragment.removeprefix("#")) or read_fragment(fragment)
            query = query if query.collection else replace(query, collection=at_hand.collection)
            return query, self._shown(query, past)
        except NNCLRHubError as error:
            gr.Warning(shown_text(error), title="This link leads nowhere")
            return at_hand, self._shown(at_hand, past)

    def _by_image(self, sample: Sample, query: Query, past: dict[str, Query], k: float) -> tuple[Any, ...]:
        if not query.collection:
            if self.finder.names():  # the session that knew which one ended with the server
                raise InvalidRequest("The server was started anew meanwhile: choose the collection again.")
            way = "make one on the tab Collections" if self._page.writable else "the operator of this server makes one"
            raise InvalidRequest(f"There is no collection to search in yet: {way}.")
        sample = self.finder.embedded(query.collection, sample)
        return self._shown(replace(query, more=(sample,), less=(), k=int(k), pages=1), past)

    def _shown(self, query: Query, past: dict[str, Query], *, keep_drawing: bool = False) -> tuple[Any, ...]:
        """Finds, and says all of it; the image that is drawn on stays where it is the same."""
        found = self.finder.find(query) if query.collection else Found([], scored=False, has_more=False)
        link = query.fragment()
        if query.collection:
            self._page.did(action_of(query))
        tiles = [
            tile(query.collection, hit.id, hit.metadata, hit.score if found.scored else None) for hit in found.hits
        ]
        view = View(
            query=query,
            past=dict([*past.items(), (link, query)][-REMEMBERED:]),
            hits=found,
            status=self._told(query, found),
            tiles=shown(tiles),
            next=gr.update(visible=found.has_more),
            samples=shown(sample_tiles(self.finder, query)),
            k=query.k,
            above="" if query.above is None else str(query.above),
            where=_pretty(query),
            address=link,
            **(dict.fromkeys(ASKED, gr.skip()) if keep_drawing else asked(self.finder, query)),
        )
        return tuple(getattr(view, name) for name in FIELDS)

    def _told(self, query: Query, found: Found) -> str:
        if not query.collection:
            return NOTHING if self._page.writable else NOTHING_HERE
        name, count = plain(query.collection), f"{found.count:,}"
        if not found.count:
            todo = "add images to it on the tab Collections" if self._page.writable else "its operator fills it"
            return f"**{name}** is empty: {todo}."
        if not found.hits:
            return f"Nothing in **{name}** passes your filter or your least score: change or clear it, beside."
        among = f"{count} images in **{name}**"
        if found.passing is not None:
            among = f"{found.passing:,} that pass your filter, of {among}"
        if not found.scored:
            whole = len(found.hits) == (found.count if found.passing is None else found.passing)
            shown = f"All {among}" if whole else f"{len(found.hits)} of the {among}"
            return f"{shown}. Click one to find those like it, or give your own."
        told = f"The {len(found.hits)} most similar of {among}"
        return f"{told}; a score of 1 is the same image." if _is_of_one_image(query) else f"{told}."


def _is_of_one_image(query: Query) -> bool:
    """Whether it is of one whole image; of a link's vector nobody knows."""
    if len(query.more) != 1 or query.less:
        return False
    [one] = query.more
    return one.box is None and (one.id is not None or one.path is not None)


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>()#+.!|~&$-])", r"\\\1", text)


def _score(text: str) -> float | None:
    if not text.strip():
        return None
    try:
        score = float(text.replace(",", "."))
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InvalidRequest(f"The least score is a number such as 0.8, or nothing for all; got {text!r:.40}.")
    return score


def _pretty(query: Query) -> str:
    return json.dumps(query.where, indent=1) if query.where else ""
