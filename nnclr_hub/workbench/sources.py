"""Read the image that an item was made from, if its file still exists and is unchanged.

    original = read_original(collection, id, folders)     # .data, .media_type, .of: "source" or "thumbnail"

`nnclr index` records the path of a file and a hash of its pixels. Metadata may come from any client, so a server reads
only files in the folders that its operator names, and returns none whose pixels differ from the item's.
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
from nnclr_hub.workbench.image_record import PIXEL_HASH, pixel_hash
from nnclr_hub.workbench.originals import Originals

# formats that browsers show; others are converted to PNG
SHOWN = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}


@dataclass(frozen=True)
class Original:
    """The best available version of an item's image.

    data: the file as it is, or converted to PNG if browsers do not show its format.
    of: "source" for the file that was indexed, "thumbnail" for the collection's copy of at most 256 pixels per side.
    reason: why it is only the thumbnail.
    """

    data: bytes
    media_type: str
    of: Literal["source", "thumbnail"]
    reason: str = ""


def read_original(
    collection: Collection, id: str, folders: Sequence[Path] | None, originals: Originals | None = None
) -> Original:
    """Return the source image of an item, or its thumbnail.

    Args:
        folders: the only folders whose files are read; None: any folder.
        originals: the files that are kept of uploaded images.

    Raises:
        ItemNotFound: if the item does not exist or has neither.
    """
    [item] = collection.get([id]) or [None]
    if item is None:
        raise ItemNotFound(f"Collection {collection.name!r} has no item {id!r:.150}.")
    found = _read(item.metadata, folders, originals)
    if not isinstance(found, str):
        return _shown(*found)
    if item.thumbnail is None:
        raise ItemNotFound(f"Item {id!r} has no image, because it was added as a vector or without a thumbnail.")
    return Original(item.thumbnail, "image/jpeg", "thumbnail", found)


def read_source(
    metadata: Mapping[str, Any], folders: Sequence[Path] | None, originals: Originals | None = None
) -> Image.Image | str:
    """Return the image that an item was made from, RGB and upright, or why it is unavailable.

    Args:
        folders, originals: as in `read_original`.
    """
    found = _read(metadata, folders, originals)
    return found if isinstance(found, str) else found[1]


# ---- inside


def _read(
    metadata: Mapping[str, Any], folders: Sequence[Path] | None, originals: Originals | None
) -> tuple[bytes, Image.Image] | str:
    """Return the file's bytes and its image. Reads once, so the checked bytes are those that are returned."""
    kept = None if originals is None else originals.read(metadata.get(PIXEL_HASH))
    if kept is not None:
        return _checked(kept, metadata)
    root, relative = metadata.get("root"), metadata.get("path")
    if not isinstance(root, str) or not isinstance(relative, str):
        return "it has no source file: it was not added by `nnclr index`, and the original of an upload was not kept"
    if not Path(root).is_absolute():  # FOLDER@HOST of `nnclr index --server`, or whatever its --source says
        return f"it was uploaded from {root}, and its file is not on this machine"
    path = Path(root, relative)
    recorded = metadata.get(PIXEL_HASH)
    try:
        if folders is not None and not any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
            return "its file is not in a folder that may be read"
        stat = path.stat()
        if recorded is None and (stat.st_size, stat.st_mtime) != (metadata.get("size"), metadata.get("mtime")):
            return "its file has changed"
        data = path.read_bytes()
    except (OSError, ValueError):
        return "its file is missing"
    return _checked(data, metadata)


def _checked(data: bytes, metadata: Mapping[str, Any]) -> tuple[bytes, Image.Image] | str:
    try:
        image = decode_image(data)
    except ImageError as error:
        return str(error)
    return (data, image) if metadata.get(PIXEL_HASH) in (None, pixel_hash(image)) else "its file has changed"


def _shown(data: bytes, image: Image.Image) -> Original:
    with Image.open(io.BytesIO(data)) as opened:
        media_type = SHOWN.get(opened.format or "")
    if media_type is not None:
        return Original(data, media_type, "source")
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return Original(file.getvalue(), "image/png", "source")
