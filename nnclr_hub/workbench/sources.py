"""The image that an item was made of, if its file is still there and still the same.

    original = read_original(collection, id, folders)     # .data, .media_type, .of: "source" or "thumbnail"

`nnclr index` notes where a file lay, and a hash of its pixels. What an item says of itself may have come from anybody:
a server reads files of the folders alone that its operator names, and gives out none whose pixels are not the item's.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.errors import ImageError, ItemNotFound
from nnclr_hub.store.base import Collection
from nnclr_hub.store.duplicates import PIXEL_HASH
from nnclr_hub.workbench.pixels import pixel_hash

# what browsers show; of all else a PNG is made
SHOWN = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}


@dataclass(frozen=True)
class Original:
    """What is there of an item's image.

    data: the file as it is, or a PNG of it where browsers do not show its format.
    of: "source" for the file that was indexed, "thumbnail" for what the collection keeps, 256 pixels at most.
    reason: why it is no more than the thumbnail.
    """

    data: bytes
    media_type: str
    of: Literal["source", "thumbnail"]
    reason: str = ""


def read_original(collection: Collection, id: str, folders: Sequence[Path] | None) -> Original:
    """The source of an item, else its thumbnail.

    Args:
        folders: the only ones that files are read of; None: any.

    Raises:
        ItemNotFound: no such item, or it has neither.
    """
    [item] = collection.get([id]) or [None]
    if item is None:
        raise ItemNotFound(f"Collection {collection.name!r} has no item {id!r:.150}: list its items to see their ids.")
    found = _read(item.metadata, folders)
    if not isinstance(found, str):
        return _shown(*found)
    if item.thumbnail is None:
        raise ItemNotFound(f"Item {id!r} has no image: it was stored by its vector alone.")
    return Original(item.thumbnail, "image/jpeg", "thumbnail", found)


def read_source(metadata: Mapping[str, Any], folders: Sequence[Path] | None) -> Image.Image | str:
    """The image that an item was made of, RGB and upright, or why it is not to be had.

    Args:
        folders: as in `read_original`.
    """
    found = _read(metadata, folders)
    return found if isinstance(found, str) else found[1]


# ---- inside


def _read(metadata: Mapping[str, Any], folders: Sequence[Path] | None) -> tuple[bytes, Image.Image] | str:
    """The file's bytes and its image: read once, so that what was checked is what is given out."""
    root, relative = metadata.get("root"), metadata.get("path")
    if not isinstance(root, str) or not isinstance(relative, str):
        return "it keeps no source, since `nnclr index` did not write it"
    if not Path(root).is_absolute():  # FOLDER@HOST of `nnclr index --server`, or whatever its --source says
        return f"it was uploaded from {root}, and its file was never here"
    path = Path(root, relative)
    recorded = metadata.get(PIXEL_HASH)
    try:
        if folders is not None and not any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
            return "its file lies in no folder that may be read"
        stat = path.stat()
        if recorded is None and (stat.st_size, stat.st_mtime) != (metadata.get("size"), metadata.get("mtime")):
            return "its file has changed"
        data = path.read_bytes()
    except (OSError, ValueError):
        return "its file is missing"
    try:
        image = decode_image(data)
    except ImageError as error:
        return str(error)
    return (data, image) if recorded in (None, pixel_hash(image)) else "its file has changed"


def _shown(data: bytes, image: Image.Image) -> Original:
    with Image.open(io.BytesIO(data)) as opened:
        media_type = SHOWN.get(opened.format or "")
    if media_type is not None:
        return Original(data, media_type, "source")
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return Original(file.getvalue(), "image/png", "source")
