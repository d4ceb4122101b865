"""An item's own image in a Viewer: the file that was indexed, or its thumbnail, and which it is."""

from __future__ import annotations

from typing import Any

from .actions import original_path
from .finding import Finder
from .widgets.viewer import Shown, view

INTERNAL = {"pixel_sha256", "mtime", "size", "root"}  # of the metadata that indexing writes


def original_view(finder: Finder, collection: str, id: str) -> dict[str, Any]:
    """What a Viewer opens with.

    Raises:
        ItemNotFound, CollectionNotFound.
    """
    original = finder.original(collection, id)
    path = original_path(collection, id)
    of = "the file that was indexed" if original.of == "source" else f"the thumbnail: {original.reason}"
    kept = finder.metadata(collection, id)
    facts = {"id": id, **{name: value for name, value in kept.items() if name not in INTERNAL}}
    return view("The original" if original.of == "source" else "The thumbnail", [Shown(path, of, path)], facts=facts)
