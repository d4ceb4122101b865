"""The metadata of an image that is indexed or imported again: what its user has written stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnclr_hub.workbench.folder_changes import BOX, OFFSET, WINDOW
from nnclr_hub.workbench.image_record import FILE_HASH, PIXEL_HASH

PLACE = frozenset({"root", "path", "size", "mtime"})  # in the metadata of all images that indexing sends
OWNED = PLACE | {PIXEL_HASH, FILE_HASH, BOX, WINDOW, OFFSET}


def is_indexed(metadata: Mapping[str, Any]) -> bool:
    """Return whether an image is of a folder, an archive or an address that is indexed."""
    return metadata.keys() >= PLACE


def refreshed(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata to store of an image whose item the collection has.

    If the pixels differ, it is another image, and only its own metadata counts. Otherwise the keys that others added
    stay, and so does a label. The label is new only if the old one came from the image's sample in an archive.

    Args:
        kept: metadata of the item.
        new: of the image, with the hash of its pixels.
    """
    if kept.get(PIXEL_HASH) != new[PIXEL_HASH]:
        return dict(new)
    metadata = {key: value for key, value in kept.items() if key not in OWNED} | dict(new)
    # a folder gives the same label each time; that of a sample is stored as its text `cls`, too
    if "label" in kept and ("cls" not in kept or kept["label"] != str(kept["cls"])):
        metadata["label"] = kept["label"]
    return metadata
