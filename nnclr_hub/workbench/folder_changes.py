"""Compare a folder of images, or archives of images, with a collection: new, changed and removed images.

The id of an indexed image is a hash of its path relative to the folder. Its metadata records where it came from
(`root`, `path`) and the state of its file (`size`, `mtime`); a file whose state differs is embedded again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import starmap
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.images.labels import find_table, table_labels
from nnclr_hub.images.listing import (
    bounded_counts,
    empty_place,
    find_places,
    in_tiles,
    is_archive,
    is_packed,
    list_places,
)
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Place, Source
from nnclr_hub.json_text import is_utf8, parse_json
from nnclr_hub.plural import counted
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import metadata_json
from nnclr_hub.store.where import check_key
from nnclr_hub.table_rows import LABEL, LabelTable, Named, read_rows
from nnclr_hub.workbench.metadata import BOX, OFFSET, OWNED, WINDOW

if TYPE_CHECKING:
    from nnclr_hub.images.tiles import Tiling
    from nnclr_hub.workbench.requests import FolderRequest

log = logging.getLogger(__name__)
NO_VECTOR = np.zeros(0, np.float32)
Known = Mapping[str, Mapping[str, Any]]  # metadata of indexed items by id
NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,2})?")  # 007 is a text


@dataclass(frozen=True)
class IndexReport:
    """The result of indexing a folder; `broken` holds (path, reason).

    kept: items that pruning kept, because their files may exist in a folder that cannot be read, or in another folder
        of the same source; the log names it.
    left_out: number of files that are not read as images, by suffix.
    empty: number of tiles without content that were left out.
    """

    added: int
    updated: int
    unchanged: int
    removed: int
    kept: int
    broken: tuple[tuple[str, str], ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    empty: int = 0


@dataclass(frozen=True)
class FolderImage:
    """A file, a tile or an image in an archive, with its id.

    metadata: to store, as far as it is known without reading the texts of its sample.
    by_table: whether its label is that of a table.
    """

    id: str
    path: Source
    metadata: Mapping[str, Any]
    by_table: bool = False

    def described(self) -> FolderImage:
        """Return it with all metadata; read the texts of its sample, which takes a request for each at an address."""
        if not is_utf8(json.dumps(dict(self.metadata), ensure_ascii=False)):
            raise ImageError("Its path or its row in the table is not UTF-8; rename it, or save the table in UTF-8.")
        if self.path.file is not None:
            return self
        texts = self.path.read_texts()
        label = {} if self.by_table else _label(self.path.label_in(texts))
        of_sample = metadata_of(self.path, texts)
        return replace(self, metadata=of_sample | dict(self.metadata) | label)

    @property
    def name(self) -> str:
        """The name to show."""
        return str(self.path) if self.path.file is None else os.path.join(self.path.place.absolute, self.path.path)


@dataclass(frozen=True)
class FolderChanges:
    """The difference between a folder and a collection.

    wanted: files that are new or changed.
    unchanged: number of files that the collection holds in their present state, with their labels.
    moved: metadata to change of unchanged images that are now elsewhere in their archive, by id.
    labels: metadata to change of items that a table labels differently, by id, once all wanted files are stored.
    gone: ids of this folder's items whose file was removed.
    kept: number of items whose file is missing but may exist in a folder that cannot be read, or in another one.
    known: ids that the collection holds already.
    """

    wanted: tuple[FolderImage, ...]
    unchanged: int
    moved: Known
    labels: Known
    gone: tuple[str, ...]
    kept: int
    known: frozenset[str]

    @property
    def counts(self) -> dict[str, int]:
        """The number of new, changed and removed files; those with another label are changed."""
        changed = sum(one.id in self.known for one in self.wanted) + self._relabeled
        return {"new": len(self.wanted) - changed, "changed": changed, "gone": len(self.gone)}

    @property
    def _relabeled(self) -> int:
        return len(self.labels.keys() - {one.id for one in self.wanted})

    def report(
        self,
        failed: Sequence[tuple[FolderImage, str]],
        removed: int,
        left_out: Mapping[str, int],
        empty: Sequence[FolderImage] = (),
    ) -> IndexReport:
        """Return the report, once all wanted files have been tried.

        Args:
            failed: files that could not be read, with the reason.
            removed: how many items were deleted.
            empty: tiles that were left out.
        """
        without = [*(one for one, _ in failed), *empty]
        updated = self.counts["changed"] - sum(one.id in self.known for one in without)
        added = len(self.wanted) - len(without) - (updated - self._relabeled)
        broken = tuple((one.name, reason) for one, reason in failed)
        return IndexReport(added, updated, self.unchanged, removed, self.kept, broken, left_out, len(empty))


@dataclass(frozen=True)
class Listing:
    """The images of a folder, of archives or at an address, as a collection identifies them.

    sources: its folders and archives.
    origins: name of each source in the collection (`root`).
    images: by item id; with tiles instead of files if it is cut into tiles.
    untiled: (origin, path) of files whose tiles could not be listed.
    folder: the local folder that was listed; None: something else.
    table: what a table says about files, by source and path: labels under "label", and its other columns. None: images
        have the labels of their folders and samples.
    relabels: whether items that the collection holds get these values, too.
    """

    sources: Sequence[Place]
    origins: Sequence[str]
    images: Mapping[str, Source]
    untiled: frozenset[tuple[str, str]] = frozenset()
    folder: Path | None = None
    table: Mapping[tuple[Place, str], Mapping[str, Any]] | None = None
    relabels: bool = False

    @property
    def left_out(self) -> dict[str, int]:
        """The number of files of its folders and archives that are not images, by suffix."""
        counts = Counter[str]()
        for one in self.sources:
            counts.update(dict(one.left_out))
        return dict(bounded_counts(counts))

    def origin_of(self, image: Source) -> str:
        """Return the name of an image's folder or archive in the collection."""
        return self._origins[image.place]

    @cached_property
    def _origins(self) -> dict[Place, str]:
        return dict(zip(self.sources, self.origins, strict=True))

    def file_of(self, image: Source) -> tuple[str, str]:
        """Return the origin and the path of an image's file."""
        return self.origin_of(image), image.file_path

    def state(self, image: Source) -> dict[str, Any]:
        """Return the metadata that shows a change of a file; its path is in its id."""
        return {"root": self.origin_of(image), "size": image.size, "mtime": image.mtime}

    def offset(self, image: Source) -> dict[str, int]:
        """Return the metadata by which an image is found in its archive; {} if `root` is not the archive itself."""
        here = self.origin_of(image) == image.place.absolute
        return {OFFSET: image.offset} if image.offset is not None and here else {}

    def item(self, id: str, image: Source) -> FolderImage:
        """Return an image; see `FolderImage`."""
        metadata = {"path": image.file_path} | self.state(image)
        by_table = self.table is not None
        if image.file is None:
            return FolderImage(id, image, metadata | self.offset(image) | self._of_table(image), by_table)
        metadata |= self._of_table(image) if by_table else _label(image.folder)
        if image.box is not None:
            metadata |= {BOX: list(image.box)} | ({WINDOW: list(image.window)} if image.window else {})
        return FolderImage(id, image, metadata)

    def patch(self, image: Source, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return how an item changes by the table; a label of its folder is deleted, and empty cells change nothing."""
        values, held = self._of_table(image), known.get(LABEL)
        patch = {key: value for key, value in values.items() if known.get(key) != value}
        return patch | ({LABEL: None} if LABEL not in values and held and held == image.folder else {})

    def _of_table(self, image: Source) -> dict[str, Any]:
        return dict((self.table or {}).get((image.place, image.file_path), {}))


def _label(label: str | list[str] | None) -> dict[str, Any]:
    return {"label": label} if label else {}


def item_id(source: Place, path: str) -> str:
    """Return the id of an image: 32 hex digits of the SHA-256 of its path below the folder.

    For a tile, the path ends in its box: `slide.svs#0,0,512,512`. For an image in an archive, it begins with the
    archive's name, because archives often contain equal names.
    """
    name = f"{PurePosixPath(source.absolute).name}/{path}" if source.archive else path
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]


# ---- list


def list_images_of(
    given: str | Path,
    *,
    prune: bool = False,
    tiling: Tiling | None = None,
    reading: ImageReading = PLAIN,
    origin: Callable[[Place], str] = lambda place: place.absolute,
    labels: LabelTable | str | Path | None = None,
) -> Listing:
    """List the images of a folder, an archive, an address or a pattern.

    Args:
        prune: accept a folder without images, since its last image may have been removed. A folder that is completely
            empty is refused all the same: its disk may not be mounted, and then nothing must be deleted.
        tiling: list tiles of the images. A file that is damaged stays as it is, and is reported when it is read.
        reading: page and channels of the tiles.
        origin: returns the name of a source in the collection.
        labels: a table of labels, also for items that the collection holds. None: see `find_table`, or else the
            folders and samples, for new and changed images.

    Raises:
        NoImages: if there are none.
        InvalidRequest: two images have the same path, the table lists no image, or see `find_images`.
    """
    places, images = _found(given, prune=prune)
    table = find_table(given, labels)
    by_file = None if table is None or not images else _table_values(table, images, given)
    origins = [origin(place) for place in places]
    untiled = set()
    if tiling is not None:
        images = list(in_tiles(images, replace(tiling, skip_empty=False), reading))
        untiled = {(origins[places.index(one.place)], one.path) for one in images if one.box is None}
    by_id: dict[str, Source] = {}
    for one in images:
        id = item_id(one.place, one.path)
        other = by_id.get(id)
        # within an archive, the last one counts, as when it is unpacked: `tar -r` adds the new state of a file
        if other is not None and (other.place != one.place or one.offset is None):
            raise InvalidRequest(
                f"{other} and {one} have the same path below their folder or archive, so one would replace the other; "
                "index them into different collections."
            )
        by_id[id] = one
    folder = Path(given).resolve() if Path(given).is_dir() else None
    return Listing(places, origins, by_id, frozenset(untiled), folder, by_file, labels is not None)


def _table_values(
    table: LabelTable, images: Sequence[Source], given: str | Path
) -> dict[tuple[Place, str], dict[str, Any]]:
    """Return what a table says about images: labels, and the other columns as metadata, numbers if all cells are."""
    rows = read_rows(table)
    values: list[dict[str, Any]] = []
    for labels in table_labels(rows, images, given):
        values.append(_label(list(labels) if len(labels) > 1 else next(iter(labels), None)))
    others = [column for column in rows.others if column.strip()]
    columns = [column for column in others if column not in {*OWNED, LABEL} and _is_key(column)]
    if not _agree(table, columns):  # each is read alone only to find those in which rows of one image disagree
        columns = [column for column in columns if _agree(table, [column])]
    if left_out := [column for column in others if column not in columns]:
        log.warning("columns of %s are left out: %s", table, ", ".join(left_out))
    named = (Named(i, one.place.absolute, one.path) for i, one in enumerate(images))
    cells = read_rows(table, columns).match(named).cells if columns else {}
    for column in columns:
        texts = {i: own[column][0] for i, own in cells.items() if own[column]}
        are_numbers = all(map(NUMBER.fullmatch, texts.values()))
        for i, text in texts.items():
            values[i][column] = json.loads(text) if are_numbers else text
    return {(one.place, one.path): own for one, own in zip(images, values, strict=True)}


def _is_key(column: str) -> bool:
    try:
        return bool(check_key(column))
    except InvalidRequest:
        return False


def _agree(table: LabelTable, columns: Sequence[str]) -> bool:
    try:
        return bool(read_rows(table, columns).rows)
    except InvalidRequest:
        return False


def check_images(request: FolderRequest) -> None:
    """Report what `list_images_of` would refuse, as far as it is known quickly; archives are listed only once."""
    if request.labels is not None:
        read_rows(LabelTable.of(request.labels))
    if is_packed(request.folder):
        find_places([request.folder])
    else:
        _found(request.folder, prune=False)


def _found(given: str | Path, *, prune: bool) -> tuple[list[Place], list[Source]]:
    place = Path(given)
    if place.is_file() and not is_archive(place.name):
        raise NoImages(f"{given} is a file; expected a folder of images, or a tar or zip file of images.")
    try:
        return list_places([given])
    except NoImages:
        if not prune or not place.is_dir():
            raise
    if not any(place.iterdir()):
        raise NoImages(
            f"{given} is empty, which may mean that its disk is not mounted, so nothing was deleted. Mount the disk; "
            "if the images were removed on purpose, put any other file into the folder and prune again."
        )
    return [empty_place(place)], []


# ---- compare


def find_changes(listing: Listing, known: Known, *, prune: bool = False, unique: bool = True) -> FolderChanges:
    """Compare images with the items that a collection holds.

    Args:
        prune: removed files will be deleted from the collection; log the folders whose items are kept.
        unique: no other folder has these origins; otherwise pruning keeps all items, since their files may be there.
    """
    gone, kept = _gone(listing, known, prune=prune)
    if prune and not unique:
        _log_other_folder(listing, [str(known[id]["root"]) for id in gone])
        gone, kept = (), kept + len(gone)
    if not (listing.images or gone or kept):
        raise NoImages(
            f"{listing.sources[0].given} holds no images, and the collection holds none of its images; give a folder "
            "of images."
        )
    held = {id: image for id, image in listing.images.items() if id in known}
    wanted = {
        id: image
        for id, image in listing.images.items()
        if id not in held or not listing.state(image).items() <= known[id].items()
    }
    moved = {
        id: offset
        for id, image in held.items()
        if id not in wanted and not (offset := listing.offset(image)).items() <= known[id].items()
    }
    labels = {
        id: patch
        for id, image in (held if listing.relabels else {}).items()
        if (patch := listing.patch(image, known[id]))
    }
    return FolderChanges(
        tuple(starmap(listing.item, wanted.items())),
        len(listing.images) - len(wanted.keys() | labels.keys()),
        moved,
        labels,
        gone,
        kept if prune else 0,
        frozenset(known),
    )


def warn_of_other_sources(listing: Listing, held: Known, advice: str) -> None:
    """Log the sources whose items pruning keeps though they seem to be of this folder, under a former name.

    Args:
        held: the items of all sources, as the collection has them.
        advice: how to delete the items of a source, whose name is put into its braces.
    """
    roots = {id: str(one["root"]) for id, one in held.items() if "root" in one}
    own = set(listing.origins)
    shared = {root for id, root in roots.items() if id in listing.images} - own
    for root, count in Counter(roots.values()).items():
        if root in shared:
            what, hint = counted(count, "item"), advice.format(shlex.quote(root))
            log.warning("pruning keeps %s of source %s; %s", what, root, hint)


def _gone(listing: Listing, known: Known, *, prune: bool) -> tuple[tuple[str, ...], int]:
    """Return the items whose file was removed; and how many more have a file that may exist but cannot be seen."""
    hidden = cache(_why_hidden)
    sources = dict(zip(listing.origins, listing.sources, strict=True))
    removed = cache(lambda origin: listing.folder in Path(origin).parents and not os.path.lexists(origin))
    gone: list[str] = []
    kept = Counter[Path]()
    for id, one in known.items():
        origin, path = str(one.get("root")), str(one.get("path", ""))
        if id in listing.images:
            continue
        source = sources.get(origin)
        lost = source is None and OFFSET in one and removed(origin)  # an archive of the folder
        if lost or (source is not None and (origin, path) not in listing.untiled):
            above: Iterable[Path] = ()
            if source is None:
                above = (up for up in Path(origin).parents if listing.folder in (up, *up.parents))
            elif not source.archive:
                above = (Path(source.absolute, up) for up in PurePosixPath(path).parents[:-1])
            place = next(filter(hidden, above), None)
            if place is None:
                gone.append(id)
            else:
                kept[place] += 1
    for place, count in kept.items() if prune else ():
        log.warning(
            "%s %s, so it keeps %s; if the files were removed on purpose, remove the folder and prune again",
            place,
            hidden(place),
            counted(count, "item"),
        )
    return tuple(gone), sum(kept.values())


def _why_hidden(folder: Path) -> str | None:
    """Return why a folder may hold files that cannot be seen, or None."""
    link = "is a link to a folder, and such links are not followed"
    try:
        with os.scandir(folder) as entries:
            if folder.is_symlink():
                return link
            return "is empty, which may mean that its disk is not mounted" if next(entries, None) is None else None
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return link if folder.is_symlink() else None
    except OSError as error:
        return f"cannot be listed ({error.strerror})"


def _log_other_folder(listing: Listing, origins: Iterable[str]) -> None:
    """Log the origins of missing items whose files another folder may have."""
    named = zip(listing.origins, listing.sources, strict=True)
    archives = {name: f":{PurePosixPath(one.absolute).name}" for name, one in named if one.archive}
    for origin, count in Counter(origins).items():
        log.warning(
            "%s lacks the files of %s of source %s, which are kept, because another folder may have the same source "
            "and these files; to delete them, repeat with --source %s",
            listing.sources[0].given,
            counted(count, "item"),
            origin,
            shlex.quote(origin.removesuffix(archives.get(origin, ""))),
        )


# ---- what an archive says about an image: the texts of its sample in WebDataset


def metadata_of(image: Source, texts: Sequence[tuple[str, str]] | None = None) -> dict[str, Any]:
    """Return what the texts of an image's sample say: the fields of its JSON, `cls`, `txt`, and its key as `__key__`.

    Invalid JSON is kept as text. What a collection cannot store is left out and logged.

    Args:
        texts: what `Source.read_texts` returned; None: read them.
    """
    key = {"__key__": image.key} if image.key else {}
    metadata: dict[str, Any] = key
    for kind, text in image.read_texts() if texts is None else texts:
        try:
            value = text if kind == "txt" else parse_json(text)
        except ValueError:
            value = text
        fields = value if kind == "json" and isinstance(value, dict) else {kind: value}
        for candidate in (metadata | fields | key, metadata | {kind: text}):
            if error := _store_error(image, candidate):
                log.warning("%s: its %s is not kept as it is: %s", image, kind, error)
                continue
            metadata = candidate
            break
    return metadata


def _store_error(image: Source, metadata: dict[str, Any]) -> str:
    added = {"path": image.path, "root": image.place.absolute, "size": image.size, "mtime": image.mtime}
    label = {"label": str(metadata["cls"])} if "cls" in metadata else {}
    try:
        metadata_json(Item(image.path, NO_VECTOR, metadata | added | label))
    except InvalidRequest as error:
        return str(error)
    return ""
