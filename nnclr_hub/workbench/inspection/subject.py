"""What is inspected: the images of a folder, or the items of a collection, with their vectors and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from nnclr_hub.encoder.features import FeatureSource, extract_features, unit_rows
from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.images.folder import find_splits
from nnclr_hub.images.reading import PLAIN
from nnclr_hub.images.tiles import Tiling
from nnclr_hub.store.base import Collection
from nnclr_hub.store.pages import pages
from nnclr_hub.table_rows import LabelTable, TableRows
from nnclr_hub.workbench.image_record import PIXEL_HASH
from nnclr_hub.workbench.inspection.files import inspected_files
from nnclr_hub.workbench.inspection.scan import Scanned, scan_image, scan_images
from nnclr_hub.workbench.inspection_fields import KEY, REVIEWED
from nnclr_hub.workbench.labels import label_text
from nnclr_hub.workbench.table_items import named_item, path_of

Report = Callable[[str], Callable[[int, int], None]]  # the title of a step -> its progress
Parts = Literal["splits", "folders"]
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
    paths: of the items, for tables; () if the items are paths.
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

    Raises:
        NoImages: there is no image, or none can be read.
        InvalidRequest: the table lists no image of the folder.
    """
    reading = getattr(encoder, "reading", PLAIN)
    listed = inspected_files(folder, labels, tiling, reading)
    found = scan_images(listed.files, cache / SCAN if cache else None, reading=reading, progress=report("reading"))
    good = [i for i, one in enumerate(found) if isinstance(one, Scanned)]
    broken = [(listed.names[i], str(one)) for i, one in enumerate(found) if not isinstance(one, Scanned)]
    if not good:
        raise NoImages(f"None of the {len(found)} images of {folder} could be read; the first error is: {broken[0][1]}")
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
        tuple(listed.labels[i] for i in rows),
        tuple(_parts([listed.names[i] for i in rows], parts)),
        listed.left_out,
        tuple(broken),
        encoder.name,
    )


def collection_subject(
    collection: Collection,
    *,
    labels: TableRows | None = None,
    field: str = "label",
    parts: Parts = "splits",
    report: Report = lambda title: lambda done, total: None,
) -> Subject:
    """Read the items of a collection; pixels come from their thumbnails.

    Args:
        labels: a table whose rows name items by id or path; None: the metadata field.
        field: metadata key of the label.

    Raises:
        InvalidRequest: fewer than two items, more vectors than fit into memory, or the table names no item.
    """
    total = collection.count()
    if total < 2 or total * collection.spec.dim * 4 > MOST_VECTORS:
        raise InvalidRequest(
            f"{collection.name!r} has {total} items; an inspection takes 2 to "
            f"{MOST_VECTORS // (4 * collection.spec.dim)} of this length of vectors."
        )
    progress = report("reading")
    ids, vectors, scanned, named, paths, reviewed, places = [], [], [], [], [], [], []
    for items in pages(collection, None, limit=500):
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
            written = item.metadata.get(KEY)
            reviewed.append(written.get(REVIEWED) if isinstance(written, dict) else None)
        progress(len(ids), max(total, len(ids)))
    if labels is not None:
        by_table = labels.check(labels.match(places), collection.name)
        named = [next(iter(by_table.labels(id)), None) for id in ids]
    confirmed = {id for id, label, by in zip(ids, named, reviewed, strict=True) if label is not None and label == by}
    rows = unit_rows(np.stack(vectors).astype(np.float32))
    model = collection.spec.model
    return Subject(
        collection.name,
        tuple(ids),
        rows,
        tuple(scanned),
        tuple(named),
        tuple(_parts(paths, parts)),
        paths=tuple(paths),
        model=model or "unknown",
        confirmed=frozenset(confirmed),
    )


def _parts(paths: Sequence[str], parts: Parts) -> list[str]:
    """Return the split, or the first folder, of each image; "" if it has none."""
    folders = [path.rpartition("/")[0] for path in paths]
    if parts == "folders":
        return [folder.partition("/")[0] for folder in folders]
    splits = find_splits(folders)
    return [next((one for one, path in splits.items() if f"{f}/".startswith(f"{path}/")), "") for f in folders]
