"""What is inspected: the images of a folder, or the items of a collection, with their vectors and labels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Literal

import numpy as np

from nnclr_hub.encoder.features import FeatureSource, ImageFile, extract_features
from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.images.labels import find_table, table_labels
from nnclr_hub.images.listing import find_splits, in_tiles, list_places
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Place, Source
from nnclr_hub.images.tiles import Tiling
from nnclr_hub.plural import counted
from nnclr_hub.store.base import Collection
from nnclr_hub.table_rows import LabelTable, TableRows, read_rows
from nnclr_hub.workbench.bench import Report
from nnclr_hub.workbench.inspection.scan import Scanned, scan_image, scan_images
from nnclr_hub.workbench.inspections import INSPECTION, REVIEWED, state_of
from nnclr_hub.workbench.labels import label_text
from nnclr_hub.workbench.metadata import PIXEL_HASH, named_item, path_of

Parts = Literal["splits", "folders"]
SCAN = "scan.sqlite"
MOST_VECTORS = 1 << 30  # bytes
LEAST_PER_CLASS = 5  # images per folder name, on average, for folder names to be labels


@dataclass(frozen=True)
class Subject:
    """N readable images.

    title: title of the report.
    items: paths relative to the folder, or ids of the collection.
    vectors: (N, D) float32, unit rows.
    scanned: one per item; None for an item of a collection without a thumbnail.
    labels: one per item; None: unlabeled.
    parts: the split or folder of each item; "" belongs to none.
    left_out: number of other files, by suffix.
    broken: (item, reason) of images that could not be read.
    model: source of the encoder.
    confirmed: items whose label a person has confirmed.
    paths: paths of the items, for tables; () if the items are paths.
    root: folder of the items, if they are its files.
    field: metadata key of the labels of a collection.
    state: the last change of the collection before it was read, and its log.
    """

    title: str
    items: tuple[str, ...]
    vectors: np.ndarray
    scanned: tuple[Scanned | None, ...]
    labels: tuple[str | None, ...]
    parts: tuple[str, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    broken: tuple[tuple[str, str], ...] = ()
    model: str = ""
    confirmed: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    root: Path | None = None
    field: str = ""
    state: tuple[int, str] = (0, "")

    @property
    def classes(self) -> tuple[str, ...]:
        """Every label that occurs, sorted."""
        return tuple(sorted({label for label in self.labels if label}))

    def pixels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return small gray images (M, 48, 48) and colors (M, 12, 12, 2) uint8; None unless every row has an image."""
        found = [one for i in rows if (one := self.scanned[i]) is not None]
        if len(found) < len(rows):
            return None
        return np.stack([one.small for one in found]), np.stack([one.color for one in found])


def folder_subject(
    folder: str | Path,
    encoder: FeatureSource,
    *,
    labels: LabelTable | Path | None = None,
    parts: Parts = "splits",
    cache: Path | None = None,
    tiling: Tiling | None = None,
    report: Report = lambda title: lambda done, total: None,
) -> Subject:
    """Read and embed the images of a folder.

    Args:
        folder, labels: see `inspected_files`.
        parts: what leaks are searched between.
        cache: folder for the results of reading and embedding, so that an interrupted inspection continues; None: only
            vectors are kept, in the cache folder.
        tiling: inspect tiles of the images instead of whole images.
    """
    reading = getattr(encoder, "reading", PLAIN)
    listed = inspected_files(folder, labels, tiling, reading)
    found = scan_images(listed.files, cache / SCAN if cache else None, reading=reading, progress=report("reading"))
    good = [i for i, one in enumerate(found) if isinstance(one, Scanned)]
    broken = [(listed.names[i], str(one)) for i, one in enumerate(found) if not isinstance(one, Scanned)]
    if not good:
        raise NoImages(
            f"None of {counted(len(found), 'image')} of {folder} could be read; the first error is: {broken[0][1]}"
        )
    files = [listed.files[i] for i in good]
    features = extract_features(encoder, files, folder=cache, progress=report("embedding"))
    kept = [k for k in range(len(good)) if k not in features.broken]
    broken += [(listed.names[good[k]], reason) for k, reason in sorted(features.broken.items())]
    rows = [good[k] for k in kept]
    return Subject(
        listed.title,
        tuple(listed.names[i] for i in rows),
        unit_rows(np.asarray(features.raw)[kept]).astype(np.float32),
        tuple(one for i in rows if isinstance(one := found[i], Scanned)),
        tuple(listed.labels[i] or None for i in rows),
        tuple(_parts([listed.names[i] for i in rows], parts)),
        listed.left_out,
        tuple(broken),
        encoder.name,
        root=Path(folder),
    )


def collection_subject(
    collection: Collection,
    *,
    labels: TableRows | None = None,
    field: str = "label",
    parts: Parts = "splits",
    write_fields: bool = False,
    report: Report = lambda title: lambda done, total: None,
) -> Subject:
    """Read the items of a collection; pixels come from their thumbnails.

    Args:
        labels: a table whose rows name items by id or path; None: the metadata field.
        field: metadata key of the label.
        write_fields: the findings will be written under the key `inspection`; InvalidRequest is raised if that holds
            anything else.
    """
    total = collection.count()
    if total < 2 or total * collection.spec.dim * 4 > MOST_VECTORS:
        raise InvalidRequest(
            f"{collection.name!r} has {counted(total, 'item')}; an inspection takes 2 to "
            f"{MOST_VECTORS // (4 * collection.spec.dim)} of this length of vectors."
        )
    log, seq = state_of(collection)
    progress = report("reading")
    ids, vectors, scanned, named, paths, reviewed, places = [], [], [], [], [], [], []
    for items in collection.pages(limit=500):
        places += map(named_item, items)
        for item in items:
            thumbnail = collection.thumbnail(item.id)
            one = scan_image(thumbnail, original=False) if thumbnail else None
            if isinstance(one, Scanned):
                digest = item.metadata.get(PIXEL_HASH)
                one = replace(one, pixel_hash=digest if isinstance(digest, str) else None)
            ids.append(item.id)
            vectors.append(item.vector)
            scanned.append(one if isinstance(one, Scanned) else None)
            named.append(label_text(item.metadata, field))
            paths.append(path_of(item))
            written = item.metadata.get(INSPECTION)
            if write_fields and not _is_ours(written):
                raise InvalidRequest(
                    f"Item {item.id!r} already has other metadata under the key {INSPECTION!r}, which the findings "
                    "would replace; move it to another key, or leave out write_fields (--write-fields)."
                )
            reviewed.append(written.get(REVIEWED) if isinstance(written, dict) else None)
        progress(len(ids), max(total, len(ids)))
    if labels is not None:
        by_table = labels.check(labels.match(places), collection.name)
        named = [next(iter(by_table.labels(id)), None) for id in ids]
    confirmed = {id for id, label, by in zip(ids, named, reviewed, strict=True) if label is not None and label == by}
    # as a folder is listed: the starts of clusters depend on the order of rows
    order = sorted(range(len(ids)), key=lambda i: (places[i].root, paths[i].split("/")))
    paths = [paths[i] for i in order]
    return Subject(
        collection.name,
        tuple(ids[i] for i in order),
        unit_rows(np.stack([vectors[i] for i in order]).astype(np.float32)),
        tuple(scanned[i] for i in order),
        tuple(named[i] or None for i in order),
        tuple(_parts(paths, parts)),
        paths=tuple(paths),
        model=collection.spec.model or "unknown",
        confirmed=frozenset(confirmed),
        field=field,
        state=(seq, log),
    )


def _is_ours(written: object) -> bool:
    return written is None or (isinstance(written, dict) and ("seq" in written or written.keys() <= {REVIEWED}))


def _parts(paths: Sequence[str], parts: Parts) -> list[str]:
    folders = [path.rpartition("/")[0] for path in paths]
    if parts == "folders":
        return [folder.partition("/")[0] for folder in folders]
    splits = find_splits(folders)
    return [next((one for one, path in splits.items() if f"{f}/".startswith(f"{path}/")), "") for f in folders]


# ---- files


@dataclass(frozen=True)
class InspectedFiles:
    """N images.

    title: the last part of the given name.
    files: as they can be decoded.
    names: paths below the folder; of several archives, after the path of the archive.
    labels: one per image; None: unlabeled.
    left_out: number of other files, by suffix.
    """

    title: str
    files: list[ImageFile]
    names: list[str]
    labels: list[str | None]
    left_out: Mapping[str, int]


def inspected_files(
    given: str | Path,
    labels: LabelTable | Path | None = None,
    tiling: Tiling | None = None,
    reading: ImageReading = PLAIN,
) -> InspectedFiles:
    """List images.

    Args:
        given: see `find_images`.
        labels: a table of labels; None: see `find_table`, or else the names of the parent folders, if they have five
            images each on average.
        tiling: list tiles of the images instead of whole images, read in this way.
    """
    places, images = list_places([given])
    folder = Path(given).resolve()
    table = find_table(given, labels)
    found = _table_labels(table, images, given) if table else _folder_labels(images)
    if tiling is not None:
        named = {(one.place, one.path): label for one, label in zip(images, found, strict=True)}
        images = list(in_tiles(images, tiling, reading))
        found = [named[one.place, one.file_path] for one in images]
    files = [one if one.file is None or one.box else Path(one.file) for one in images]
    prefixes = dict(zip(places, _prefixes(given, places), strict=True))
    names = [prefixes[one.place] + one.path for one in images]
    others = sum((Counter(dict(one.left_out)) for one in places), Counter[str]())
    if table and folder in table.file.resolve().parents and not places[0].archive:
        others -= Counter([table.file.suffix.lower()])
    return InspectedFiles(PurePath(folder).name, files, names, found, others)


def _prefixes(given: str | Path, places: Sequence[Place]) -> list[str]:
    if len(places) == 1:
        return [""]
    root = str(given).rstrip("/")
    if not os.path.isdir(root) and not all(one.given.startswith(f"{root}/") for one in places):  # it is a pattern
        root = os.path.commonpath([os.path.dirname(one.given) for one in places])
    paths = [PurePath(os.path.relpath(one.given, root or ".")).as_posix() for one in places]
    return ["" if path == "." else f"{path}/" for path in paths]


def _table_labels(table: LabelTable, images: Sequence[Source], given: str | Path) -> list[str | None]:
    return [label[0] if label else None for label in table_labels(one_label_each(table), images, given)]


def one_label_each(table: LabelTable) -> TableRows:
    """Read a table with one label per image."""
    rows = read_rows(table)
    if rows.labels_are_lists:
        raise InvalidRequest(f"{table} has the column labels; an inspection needs one label per image, in `label`.")
    return rows


def _folder_labels(images: Sequence[Source]) -> list[str | None]:
    names = [one.label for one in images]
    classes = {name for name in names if name}
    usable = len(classes) >= 2 and len(classes) * LEAST_PER_CLASS <= len(images)
    return names if usable else [None] * len(images)
