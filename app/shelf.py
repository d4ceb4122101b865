"""Shelf: what the tab Collections does with collections and their images; all through the workbench.

Each step takes the shelf that is shown and gives what is to be shown, in the order of `View`'s fields.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import gradio as gr

from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.workbench.privacy import public_metadata, public_name

from .actions import Action, collection_path, deletion
from .finding import Finder
from .page import Page
from .steps import plain
from .widgets.intake import intake_value
from .widgets.tiles import MOST_SELECTED, shown, tile

A_PAGE = 24
NO_COLLECTION = "**There is no collection yet.** A collection holds images that are searched together: make one here."
NOTHING_HERE = "There is no collection, and this server is read-only: its operator fills it with `nnclr index`."


@dataclass(frozen=True)
class Shelf:
    """A page of a collection.

    collection: "" where there is none.
    starts: cursors of the pages up to this one; the first is None.
    """

    collection: str = ""
    starts: tuple[str | None, ...] = (None,)


@dataclass(frozen=True)
class View:
    """What the tab shows: values or updates of its components, by the names that they have there."""

    picker: Any
    shelf: Any
    intake: Any
    status: Any
    tiles: Any
    previous: Any
    next: Any


FIELDS = tuple(one.name for one in fields(View))


class Shelves:
    """See the module.

    Args:
        page: whose workbench it is.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self.finder = Finder(page)

    def begin(self, kept_collection: Any) -> tuple[Any, ...]:
        """The collection that was chosen last, or else the first."""
        return self._listed(Shelf(self.finder.chosen(kept_collection)))

    def refresh(self, shelf: Shelf, kept_collection: Any) -> tuple[Any, ...]:
        """What is there by now, which nobody did just now: it is not noted as an action."""
        name = self.finder.chosen(kept_collection, shelf.collection)
        return self._shown(shelf if name == shelf.collection else Shelf(name))

    def choose(self, name: str | None) -> tuple[Any, ...]:
        """Another collection."""
        return self._listed(Shelf(name or ""))

    def next(self, shelf: Shelf) -> tuple[Any, ...]:
        """The page after this one."""
        page = self._items(shelf)
        if page.cursor is None:
            return (gr.skip(),) * len(FIELDS)
        return self._listed(replace(shelf, starts=(*shelf.starts, page.cursor)))

    def previous(self, shelf: Shelf) -> tuple[Any, ...]:
        """The page before this one."""
        return self._listed(replace(shelf, starts=shelf.starts[:-1] or (None,)))

    # ---- what writes

    def create(self, name: str) -> tuple[Any, ...]:
        """An empty collection for the server's encoder.

        Raises:
            CollectionExists.
            InvalidRequest: it is no name.
        """
        name = name.strip() if isinstance(name, str) else ""
        if not name:
            raise InvalidRequest("A collection needs a name, such as holidays: type one.")
        bench = self._page.bench
        try:
            bench.collection(name)
        except CollectionNotFound:
            bench.store.create(name, CollectionSpec.of(bench.models.get()))
        else:
            raise CollectionExists(
                f"There is a collection {name!r:.100} already: choose it above, or take another name."
            )
        made = Action("PUT", collection_path(name), json={}, call=f"client.collections.create({name!r})")
        return self._shown(Shelf(name), did=made)

    def delete(self, shelf: Shelf, ids: Any) -> tuple[Any, ...]:
        """Some of its images."""
        chosen = ids if isinstance(ids, list) and 0 < len(ids) <= MOST_SELECTED else []
        chosen = [id for id in chosen if isinstance(id, str)]
        if not chosen:
            raise InvalidRequest("Nothing is selected: tick the images to delete before.")
        self._page.bench.delete(shelf.collection, chosen)
        return self._shown(shelf, did=deletion(shelf.collection, chosen))

    def drop(self, name: str) -> tuple[Any, ...]:
        """The whole collection.

        Raises:
            CollectionNotFound.
        """
        self._page.bench.drop(name if isinstance(name, str) else "")
        gone = Action("DELETE", collection_path(name), call=f"client.collections.drop({name!r})")
        return self._shown(Shelf(self.finder.chosen()), did=gone)

    # ---- inside

    def _items(self, shelf: Shelf) -> Any:
        return self._page.bench.collection(shelf.collection).scroll(shelf.starts[-1], A_PAGE, with_vector=False)

    def _listed(self, shelf: Shelf) -> tuple[Any, ...]:
        return self._shown(shelf, did=_listing(shelf) if shelf.collection else None)

    def _shown(self, shelf: Shelf, *, did: Action | None = None) -> tuple[Any, ...]:
        """What the tab shows of a shelf; `did` is what led there, where somebody did something."""
        if did is not None:
            self._page.did(did)
        names = self.finder.names()
        picker = gr.Dropdown(choices=names, value=shelf.collection or None, visible=bool(names))
        if not shelf.collection:
            told = NO_COLLECTION if self._page.writable else NOTHING_HERE
            return self._view(picker, shelf, told, [], has_more=False)
        page = self._items(shelf)
        while not page.items and len(shelf.starts) > 1:  # all of the last page was deleted
            shelf = replace(shelf, starts=shelf.starts[:-1])
            page = self._items(shelf)
        tiles = [tile(shelf.collection, item.id, public_metadata(item.metadata)) for item in page.items]
        return self._view(picker, shelf, self._told(shelf, len(tiles)), tiles, has_more=page.cursor is not None)

    def _view(self, picker: Any, shelf: Shelf, told: str, tiles: list[Any], *, has_more: bool) -> tuple[Any, ...]:
        view = View(
            picker=picker,
            shelf=shelf,
            intake=intake_of(shelf) if self._page.adds else gr.skip(),
            status=told,
            tiles=shown(tiles),
            previous=gr.update(visible=len(shelf.starts) > 1),
            next=gr.update(visible=has_more),
        )
        return tuple(getattr(view, name) for name in FIELDS)

    def _told(self, shelf: Shelf, here: int) -> str:
        info = self._page.bench.collection(shelf.collection).info()
        name, encoder = plain(shelf.collection), plain(public_name(info.spec.model)) if info.spec.model else "unknown"
        if not info.count:
            todo = "give it pictures, a folder of them or a zip" if self._page.writable else "its operator fills it"
            return f"**{name}** is empty: {todo}. Encoder: {encoder}."
        first = (len(shelf.starts) - 1) * A_PAGE + 1
        return f"Images {first:,} to {first + here - 1:,} of {info.count:,} in **{name}**. Encoder: {encoder}."


def intake_of(shelf: Shelf) -> Any:
    """The intake for a shelf; hidden where there is no collection."""
    return gr.update(value=intake_value(shelf.collection), visible=bool(shelf.collection))


def _listing(shelf: Shelf) -> Action:
    """The call that lists the images up to this page: REST's own cursors are not ours."""
    limit = min(A_PAGE * len(shelf.starts), MAX_LIMIT)
    call = f"client.collection({shelf.collection!r}).scroll(limit={limit}, with_vector=False)"
    return Action("GET", f"{collection_path(shelf.collection)}/items?limit={limit}", call=call)
