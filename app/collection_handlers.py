"""CollectionHandlers: the actions on the Collections tab that change what it shows.

Each handler takes the page of the collection that is shown, and returns the new view as a tuple in the order of FIELDS.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.errors import CollectionExists, CollectionNotFound, InvalidRequest
from nnclr_hub.store.base import CollectionSpec
from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.workbench.privacy import public_metadata, public_name

from .api_calls import collection_path, delete_call
from .finder import Finder
from .handlers import escape_markdown
from .page import Page
from .widgets.tiles import MAX_SELECTED, tile, tiles_value
from .widgets.uploader import uploader_value

PER_PAGE = 24
NO_COLLECTION = "**There is no collection yet.** A collection is a set of images to search. Create one here."
NO_COLLECTION_READ_ONLY = "There is no collection yet. This server is read-only; its operator can run `nnclr index`."
# the components that a handler updates, by their attributes of the tab
FIELDS = ("picker", "shown", "uploader", "status", "tiles", "previous", "next")


@dataclass(frozen=True)
class CollectionPage:
    """A page of a collection's images.

    collection: "" if there is none.
    cursors: of the pages up to this one; the first is None.
    """

    collection: str = ""
    cursors: tuple[str | None, ...] = (None,)


class CollectionHandlers:
    """Handle the events of the Collections tab."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.finder = Finder(page)

    def load(self, stored_collection: Any) -> tuple[Any, ...]:
        """Show the collection that was chosen last, else the first one."""
        return self._list(CollectionPage(self.finder.choose_collection(stored_collection)))

    def refresh(self, shown: CollectionPage, stored_collection: Any) -> tuple[Any, ...]:
        """Show the current items. No REST call is recorded, since the user did nothing."""
        name = self.finder.choose_collection(stored_collection, shown.collection)
        return self._view(shown if name == shown.collection else CollectionPage(name))

    def choose(self, name: str | None) -> tuple[Any, ...]:
        """Show another collection."""
        return self._list(CollectionPage(name or ""))

    def next(self, shown: CollectionPage) -> tuple[Any, ...]:
        """Show the next page."""
        page = self._items(shown)
        if page.cursor is None:
            return (gr.skip(),) * len(FIELDS)
        return self._list(replace(shown, cursors=(*shown.cursors, page.cursor)))

    def previous(self, shown: CollectionPage) -> tuple[Any, ...]:
        """Show the previous page."""
        return self._list(replace(shown, cursors=shown.cursors[:-1] or (None,)))

    # ---- handlers that write

    def create(self, name: str) -> tuple[Any, ...]:
        """Create an empty collection, bound to the server's encoder.

        Raises:
            CollectionExists.
            InvalidRequest: the name is empty or not valid.
        """
        name = name.strip() if isinstance(name, str) else ""
        if not name:
            raise InvalidRequest("Enter a name for the collection, such as holidays.")
        bench = self._page.bench
        try:
            bench.collection(name)
        except CollectionNotFound:
            bench.store.create(name, CollectionSpec.of(bench.models.get()))
        else:
            raise CollectionExists(
                f"The collection {name!r:.100} already exists. Select it above, or use another name."
            )
        self._page.note(ApiCall("PUT", collection_path(name), json={}, call=f"client.collections.create({name!r})"))
        return self._view(CollectionPage(name))

    def delete(self, shown: CollectionPage, ids: Any) -> tuple[Any, ...]:
        """Delete images of the collection."""
        selected = ids if isinstance(ids, list) and 0 < len(ids) <= MAX_SELECTED else []
        selected = [id for id in selected if isinstance(id, str)]
        if not selected:
            raise InvalidRequest("No image is selected. Select the images to delete first.")
        self._page.bench.delete(shown.collection, selected)
        self._page.note(delete_call(shown.collection, selected))
        return self._view(shown)

    def drop(self, name: str) -> tuple[Any, ...]:
        """Delete a collection.

        Raises:
            CollectionNotFound.
        """
        self._page.bench.drop(name if isinstance(name, str) else "")
        self._page.note(ApiCall("DELETE", collection_path(name), call=f"client.collections.drop({name!r})"))
        return self._view(CollectionPage(self.finder.choose_collection()))

    # ---- the view

    def _items(self, shown: CollectionPage) -> Any:
        return self._page.bench.collection(shown.collection).scroll(shown.cursors[-1], PER_PAGE, with_vector=False)

    def _list(self, shown: CollectionPage) -> tuple[Any, ...]:
        if shown.collection:
            self._page.note(_list_call(shown))
        return self._view(shown)

    def _view(self, shown: CollectionPage) -> tuple[Any, ...]:
        names = self.finder.names()
        picker = gr.Dropdown(choices=names, value=shown.collection or None, visible=bool(names))
        tiles: list[Any] = []
        status, has_more = NO_COLLECTION if self._page.writable else NO_COLLECTION_READ_ONLY, False
        if shown.collection:
            page = self._items(shown)
            while not page.items and len(shown.cursors) > 1:  # all images of the last page were deleted
                shown = replace(shown, cursors=shown.cursors[:-1])
                page = self._items(shown)
            tiles = [tile(shown.collection, item.id, public_metadata(item.metadata)) for item in page.items]
            status, has_more = self._status(shown, len(tiles)), page.cursor is not None
        uploader = gr.update(value=uploader_value(shown.collection), visible=bool(shown.collection))
        values: dict[str, Any] = {
            "picker": picker,
            "shown": shown,
            "uploader": uploader if self._page.can_add else gr.skip(),
            "status": status,
            "tiles": tiles_value(tiles),
            "previous": gr.update(visible=len(shown.cursors) > 1),
            "next": gr.update(visible=has_more),
        }
        return tuple(values[name] for name in FIELDS)

    def _status(self, shown: CollectionPage, number: int) -> str:
        info = self._page.bench.collection(shown.collection).info()
        name = escape_markdown(shown.collection)
        encoder = escape_markdown(public_name(info.spec.model)) if info.spec.model else "unknown"
        if not info.count:
            hint = "Add images, a folder or a zip." if self._page.writable else "The server's operator can fill it."
            return f"**{name}** is empty. {hint} Encoder: {encoder}."
        first = (len(shown.cursors) - 1) * PER_PAGE + 1
        return f"Images {first:,} to {first + number - 1:,} of {info.count:,} in **{name}**. Encoder: {encoder}."


def _list_call(shown: CollectionPage) -> ApiCall:
    """Return the call that lists the images up to this page, since REST's cursors differ from the page's."""
    limit = min(PER_PAGE * len(shown.cursors), MAX_LIMIT)
    call = f"client.collection({shown.collection!r}).scroll(limit={limit}, with_vector=False)"
    return ApiCall("GET", f"{collection_path(shown.collection)}/items", params={"limit": str(limit)}, call=call)
