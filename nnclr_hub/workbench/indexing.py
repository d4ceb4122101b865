"""Pictures into a collection: a whole folder, or a handful.

An indexed folder can be indexed again at any time: what is new is added, what changed (by size or
modification time) is embedded anew, and with `prune` what is gone from the folder is deleted. Every
batch is durable when it is done, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.encoder.image_folder import label_of, list_images
from nnclr_hub.encoder.preprocess import decode_image
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.workbench.thumbnail import make_thumbnail

BATCH = 64
PAGE = 1000


@dataclass(frozen=True)
class NewImage:
    """A picture to put into a collection.

    id: the item's id.
    image: path, bytes or PIL image.
    metadata: kept with it.
    """

    id: str
    image: Path | bytes | Image.Image
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class IndexReport:
    """What indexing a folder did; `broken` holds (path, reason)."""

    added: int
    updated: int
    unchanged: int
    removed: int
    broken: tuple[tuple[str, str], ...]


def add_images(collection: Collection, embedder: Embedder, images: Sequence[NewImage]) -> list[ImageError | None]:
    """Embeds pictures and upserts them; returns when those that could be read are durable.

    Returns:
        One entry a picture: None, or why it could not be read.
    """
    with ThreadPoolExecutor(max_workers=4) as pool:
        decoded = list(pool.map(_decode, images))
    return _store(collection, embedder, images, decoded)


def index_folder(
    collection: Collection,
    embedder: Embedder,
    folder: Path,
    *,
    prune: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> IndexReport:
    """Makes the collection hold the folder's pictures.

    Args:
        folder: searched with all its subfolders; a picture's parent folder is its label.
        prune: delete items of this folder whose file is gone.
        progress: called with (done, total), counted in pictures to embed.

    Raises:
        NoImages: the folder holds no picture.
        InvalidRequest: the collection holds pictures of another folder under the same relative paths.
    """
    root = Path(folder).resolve()
    found = {item_id(path, root): path for path in list_images(root)}
    known = _known(collection)
    _refuse_clash(collection, root, found, known)
    wanted, broken = _wanted(root, found, known)
    unreachable = len(broken)
    done = 0
    for batch, decoded in _decoded_ahead(wanted):
        errors = _store(collection, embedder, batch, decoded)
        broken += [(new, str(error)) for new, error in zip(batch, errors, strict=True) if error is not None]
        done += len(batch)
        progress(done, len(wanted))
    gone = [id for id, metadata in known.items() if metadata["root"] == str(root) and id not in found] if prune else []
    removed = sum(collection.delete(gone[i : i + PAGE]) for i in range(0, len(gone), PAGE))
    failed = {new.id for new, _ in broken}
    stored = [new.id for new in wanted if new.id not in failed]
    updated = sum(id in known for id in stored)
    return IndexReport(
        added=len(stored) - updated,
        updated=updated,
        unchanged=len(found) - len(wanted) - unreachable,
        removed=removed,
        broken=tuple((str(new.image), reason) for new, reason in broken),
    )


def _wanted(
    root: Path, found: Mapping[str, Path], known: Mapping[str, Mapping[str, Any]]
) -> tuple[list[NewImage], list[tuple[NewImage, str]]]:
    """The files that are new or changed, and those that are not to be had, with the reason."""
    wanted, broken = [], []
    for id, path in found.items():
        try:
            stat = path.stat()
        except OSError as error:  # a dangling link, or gone since the folder was listed
            broken.append((NewImage(id, path), f"The file cannot be opened ({error.strerror})."))
            continue
        state = {"root": str(root), "size": stat.st_size, "mtime": stat.st_mtime}
        if id in known and all(known[id][name] == value for name, value in state.items()):
            continue
        label = label_of(path, root)
        metadata = {"path": path.relative_to(root).as_posix(), **state} | ({"label": label} if label else {})
        wanted.append(NewImage(id, path, metadata))
    return wanted, broken


def item_id(path: Path, root: Path) -> str:
    """The id of an indexed file: 32 hex digits of the SHA-256 of its path relative to the indexed folder."""
    relative = Path(path).relative_to(root).as_posix()
    return hashlib.sha256(relative.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _known(collection: Collection) -> dict[str, dict[str, Any]]:
    """Metadata of the items that came from an indexed folder, by id."""
    known: dict[str, dict[str, Any]] = {}
    cursor = None
    while True:
        page = collection.scroll(cursor, PAGE, {"must": [{"key": "root", "exists": True}]})
        known |= {item.id: dict(item.metadata) for item in page.items}
        cursor = page.cursor
        if cursor is None:
            return known


def _refuse_clash(
    collection: Collection, root: Path, found: Mapping[str, Path], known: Mapping[str, Mapping[str, Any]]
) -> None:
    """Two folders with the same relative paths would overwrite each other; a folder that moved may."""
    for id in found.keys() & known.keys():
        other = known[id]["root"]
        if other != str(root) and Path(other, known[id]["path"]).exists():
            raise InvalidRequest(
                f"Collection {collection.name!r} holds {known[id]['path']!r} of {other} already: index {root} into a "
                "collection of its own, or index a folder that holds both."
            )


def _decode(new: NewImage) -> Image.Image | ImageError:
    try:
        return decode_image(new.image)
    except ImageError as error:
        return error


def _decoded_ahead(
    images: Sequence[NewImage],
) -> Iterator[tuple[Sequence[NewImage], list[Image.Image | ImageError]]]:
    """Batches with their decoded pictures; the next one is decoded while the caller embeds this one."""
    batches = [images[i : i + BATCH] for i in range(0, len(images), BATCH)]
    with ThreadPoolExecutor(max_workers=4) as pool:
        ahead = [pool.submit(_decode, new) for new in images[:BATCH]]
        for number, batch in enumerate(batches, 1):
            current = ahead
            ahead = [pool.submit(_decode, new) for new in images[number * BATCH : (number + 1) * BATCH]]
            yield batch, [future.result() for future in current]


def _store(
    collection: Collection,
    embedder: Embedder,
    images: Sequence[NewImage],
    decoded: Sequence[Image.Image | ImageError],
) -> list[ImageError | None]:
    """Embeds what was decoded and upserts it with its thumbnail, in one durable write."""
    readable = [(new, image) for new, image in zip(images, decoded, strict=True) if isinstance(image, Image.Image)]
    vectors = iter(embedder.embed_each([image for _, image in readable]))
    items: list[Item] = []
    errors: list[ImageError | None] = []
    for new, image in zip(images, decoded, strict=True):
        result = image if isinstance(image, ImageError) else next(vectors)
        if isinstance(result, ImageError):
            errors.append(result)
            continue
        errors.append(None)
        items.append(Item(new.id, result, dict(new.metadata), make_thumbnail(image)))  # type: ignore[arg-type]
    if items:
        collection.upsert(items)
    return errors
