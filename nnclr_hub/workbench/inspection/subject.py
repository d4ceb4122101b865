"""What is inspected: the images of a folder, or the items of a collection, with their vectors and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from nnclr_hub.encoder.features import FeatureSource, extract_features, unit_rows
from nnclr_hub.encoder.image_folder import SPLITS, label_of, list_images
from nnclr_hub.encoder.labeled import TABLE, read_labeled
from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.store.base import Collection
from nnclr_hub.store.pages import pages
from nnclr_hub.workbench.image_record import PIXEL_HASH
from nnclr_hub.workbench.inspection.scan import Scanned, left_out, scan_image, scan_images
from nnclr_hub.workbench.inspection_fields import KEY, REVIEWED

Report = Callable[[str], Callable[[int, int], None]]  # the title of a step -> its progress
Parts = Literal["splits", "folders"]
LEAST_PER_CLASS = 5  # images per folder name, on average, for folder names to be labels
SCAN = "scan.sqlite"
MOST_VECTORS = 1 << 30  # bytes


@dataclass(frozen=True)
class Subject:
    """N readable images.

    title: of the report.
    items: paths relative to the folder, or ids of the collection.
    vectors: (N, D) float32, unit rows.
    scanned: one per item; None for an item of a collection without a thumbnail.
    labels: one per item; None: unlabeled.
    parts: the split or folder of each item; "" belongs to none.
    left_out: number of other files, by suffix.
    broken: (item, reason) of images that could not be read.
    model: source of the encoder.
    confirmed: items whose label a person has confirmed.
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

    @property
    def small(self) -> np.ndarray | None:
        """(N, 48, 48) uint8; None unless every item has an image."""
        if any(one is None for one in self.scanned):
            return None
        return np.stack([one.small for one in self.scanned if one is not None])


def folder_subject(
    folder: Path,
    encoder: FeatureSource,
    *,
    labels: Path | None = None,
    root: Path | None = None,
    parts: Parts = "splits",
    cache: Path | None = None,
    report: Report = lambda title: lambda done, total: None,
) -> Subject:
    """Read and embed the images of a folder.

    Args:
        labels: a table of labels; None: labels.csv in the folder, or else the names of the parent folders, if they have
            five images each on average.
        root: folder to which the paths of the table are relative; None: that of the table, or else `folder`.
        parts: what leaks are searched between.
        cache: folder for results of the scan, so that an interrupted inspection continues.

    Raises:
        NoImages: there is no image, or none can be read.
        InvalidRequest: the table lists no image of the folder.
    """
    folder = Path(folder)
    paths = list_images(folder)
    table = labels or (folder / TABLE if (folder / TABLE).is_file() else None)
    named = table_labels(table, paths, folder, root) if table else folder_labels(paths, folder)
    found = scan_images(paths, cache / SCAN if cache else None, progress=report("reading"))
    good = [i for i, one in enumerate(found) if isinstance(one, Scanned)]
    names = [path.relative_to(folder).as_posix() for path in paths]
    broken = [(names[i], str(one)) for i, one in enumerate(found) if not isinstance(one, Scanned)]
    if not good:
        raise NoImages(f"None of the {len(paths)} images of {folder} could be read; the first error is: {broken[0][1]}")
    features = extract_features(encoder, [paths[i] for i in good], progress=report("embedding"))
    kept = [k for k in range(len(good)) if k not in features.broken]
    broken += [(names[good[k]], reason) for k, reason in sorted(features.broken.items())]
    rows = [good[k] for k in kept]
    return Subject(
        folder.resolve().name,
        tuple(names[i] for i in rows),
        unit_rows(np.asarray(features.raw)[kept]).astype(np.float32),
        tuple(one for i in rows if isinstance(one := found[i], Scanned)),
        tuple(named[i] for i in rows),
        tuple(_part(names[i], parts) for i in rows),
        left_out(folder, [table] if table else []),
        tuple(broken),
        encoder.name,
    )


def collection_subject(
    collection: Collection,
    *,
    labels: Mapping[str, str] | None = None,
    field: str = "label",
    parts: Parts = "splits",
    report: Report = lambda title: lambda done, total: None,
) -> Subject:
    """Read the items of a collection; pixels come from their thumbnails.

    Args:
        labels: by id or by path; None: the metadata field.
        field: metadata key of the label.

    Raises:
        InvalidRequest: fewer than two items, or more vectors than fit into memory.
    """
    total = collection.count()
    if total < 2 or total * collection.spec.dim * 4 > MOST_VECTORS:
        raise InvalidRequest(
            f"{collection.name!r} has {total} items; an inspection takes 2 to "
            f"{MOST_VECTORS // (4 * collection.spec.dim)} of this length of vectors."
        )
    progress = report("reading")
    ids, vectors, scanned, named, part, confirmed = [], [], [], [], [], set()
    for items in pages(collection, None, limit=500):
        for item in items:
            path = str(item.metadata.get("path", item.id))
            label = item.metadata.get(field) if labels is None else labels.get(item.id, labels.get(path))
            thumbnail = collection.thumbnail(item.id)
            one = scan_image(thumbnail, original=False) if thumbnail else None
            if isinstance(one, Scanned):
                digest = item.metadata.get(PIXEL_HASH)
                one = Scanned(digest if isinstance(digest, str) else None, one.small, one.tile, one.facts)
            ids.append(item.id)
            vectors.append(item.vector)
            scanned.append(one if isinstance(one, Scanned) else None)
            named.append(label if isinstance(label, str) else None if label is None else str(label))
            part.append(_part(path, parts))
            written = item.metadata.get(KEY)
            if named[-1] is not None and isinstance(written, dict) and written.get(REVIEWED) == named[-1]:
                confirmed.add(item.id)
        progress(len(ids), max(total, len(ids)))
    rows = unit_rows(np.stack(vectors).astype(np.float32))
    model = collection.spec.model
    return Subject(
        collection.name,
        tuple(ids),
        rows,
        tuple(scanned),
        tuple(named),
        tuple(part),
        model=model or "unknown",
        confirmed=frozenset(confirmed),
    )


def table_labels(table: Path, paths: Sequence[Path], folder: Path, root: Path | None) -> list[str | None]:
    """Return the label of each path by a table; None where it has none.

    Raises:
        InvalidRequest: the table has several labels per image, or lists none of the paths; names where it looked.
    """
    listed = listed_labels(table)
    for base in (root,) if root is not None else (table.parent, folder):
        labels = {(base / name).resolve(): label for name, label in listed.items()}
        found = [labels.get(path.resolve()) for path in paths]
        if any(found):
            return found
    where = root if root is not None else f"{table.parent} and {folder}"
    raise InvalidRequest(
        f"{table} lists no image of {folder}. Its first path is {next(iter(listed), 'missing')}, relative to {where}; "
        "set --root."
    )


def listed_labels(table: Path) -> dict[str, str]:
    """Return the label of each path or id as the table spells it."""
    read = read_labeled(table)
    if read.several:
        raise InvalidRequest(f"{table} has the column labels; an inspection needs one label per image, in `label`.")
    names = [path.relative_to(table.parent) if path.is_relative_to(table.parent) else path for path in read.paths]
    return {name.as_posix(): one[0] for name, one in zip(names, read.labels, strict=True) if one}


def folder_labels(paths: Sequence[Path], folder: Path) -> list[str | None]:
    """Return the names of the parent folders, if they have five images each on average; else None for all."""
    names = [label_of(path, folder) for path in paths]
    classes = {name for name in names if name}
    usable = len(classes) >= 2 and len(classes) * LEAST_PER_CLASS <= len(paths)
    return names if usable else [None] * len(paths)


def _part(name: str, parts: Parts) -> str:
    first, slash, _ = name.partition("/")
    return first if slash and (parts == "folders" or first in SPLITS) else ""
