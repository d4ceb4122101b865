"""Read the image that an item was made from, if its file still exists and is unchanged.

    original = read_original(collection, id, folders)     # .data, .media_type, .of: "source" or "thumbnail"

`nnclr index` records the path of a file and a hash of its pixels. Metadata may come from any client, so a server reads
only files in the folders that its operator names, and returns none whose pixels differ from the item's.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image, UnidentifiedImageError

from nnclr_hub.errors import ImageError, InvalidRequest, ItemNotFound
from nnclr_hub.images.channels import AnyImage, for_people
from nnclr_hub.images.pool import read_bytes, run_isolated
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Place, Source, archive_kind
from nnclr_hub.store.base import Collection
from nnclr_hub.workbench.image_record import record
from nnclr_hub.workbench.metadata import BOX, FILE_HASH, OFFSET, PIXEL_HASH, WINDOW
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
    found = _read(item.metadata, ImageReading.of_source(collection.spec.model), folders, originals)
    if not isinstance(found, str):
        data, image = found
        media_type = None
        with suppress(UnidentifiedImageError), Image.open(io.BytesIO(data)) as opened:  # or a reader's format
            media_type = SHOWN.get(opened.format or "")
        if media_type is None:
            for_people(image).save(file := io.BytesIO(), "PNG", compress_level=1)
            data, media_type = file.getvalue(), "image/png"
        return Original(data, media_type, "source")
    if item.thumbnail is None:
        raise ItemNotFound(f"Item {id!r} has no image, because it was added as a vector or without a thumbnail.")
    return Original(item.thumbnail, "image/jpeg", "thumbnail", found)


def read_source(
    metadata: Mapping[str, Any],
    folders: Sequence[Path] | None,
    originals: Originals | None = None,
    reading: ImageReading = PLAIN,
) -> AnyImage | str:
    """Return the image that an item was made from, upright, or why it is unavailable.

    Args:
        folders, originals: as in `read_original`.
        reading: page and channels that the collection's encoder reads.
    """
    found = _read(metadata, reading, folders, originals)
    return found if isinstance(found, str) else found[1]


# ---- inside


def _read(
    metadata: Mapping[str, Any], reading: ImageReading, folders: Sequence[Path] | None, originals: Originals | None
) -> tuple[bytes, AnyImage] | str:
    """Return the file's bytes and its image. Reads once, so the checked bytes are those that are returned."""
    kept = None if originals is None else originals.read(metadata.get(FILE_HASH))
    if kept is not None:
        return _checked(kept, metadata, reading)
    root, relative = metadata.get("root"), metadata.get("path")
    if not isinstance(root, str) or not isinstance(relative, str):
        return "it has no source file: it was not added by `nnclr index`, and the original of an upload was not kept"
    if not Path(root).is_absolute():  # FOLDER-ID@HOST of `nnclr index --server`, or whatever its --source says
        return f"it comes from {root}, and its file is not on this machine"
    recorded, offset = metadata.get(PIXEL_HASH), metadata.get(OFFSET)
    path = Path(root, relative) if offset is None else Path(root)  # the path of the archive
    try:
        if folders is not None and not any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
            return "the server may not read its folder, which is not in NNCLR_SOURCE_FOLDERS"
        stat = path.stat()
        if recorded is None and (stat.st_size, stat.st_mtime) != (metadata.get("size"), metadata.get("mtime")):
            return "its file has changed"
        box = metadata.get(BOX)
        if box is not None:  # a tile of an image that may be too large to read as a whole
            source: bytes | Source = Source.tile_of(path, box, metadata.get(WINDOW))
        elif offset is None:
            source = path.read_bytes()
        else:
            archive = Place(root, root, archive_kind(root), stat.st_mtime)
            source = read_bytes(Source(archive, relative, metadata["size"], 0.0, offset))
    except (OSError, ValueError, TypeError, KeyError):
        return "its file is missing"
    except (ImageError, InvalidRequest) as error:
        return str(error)
    return _checked(source, metadata, reading)


def _checked(
    source: bytes | Source, metadata: Mapping[str, Any], reading: ImageReading
) -> tuple[bytes, AnyImage] | str:
    try:
        found, _, image = run_isolated(record, source, reading, False, True)
    except ImageError as error:
        return str(error)
    assert image is not None
    data = source if isinstance(source, bytes) else b""
    return (data, image) if metadata.get(PIXEL_HASH) in (None, found) else "its file has changed"
