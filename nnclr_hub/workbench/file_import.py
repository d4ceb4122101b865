"""Import a file into a collection: images in an archive, or items by their vectors.

    report = import_file(bench, "photos", Path("photos.zip"), FORMATS["zip"])
    report = import_file(bench, "vectors", Path("items.ndjson"), FORMATS["ndjson"])
    report.added, report.replaced, report.unchanged, report.errors

Jobs of the server and the command line import with it. An invalid image or row is reported, and the others are stored.
An import that was interrupted can be repeated: items that the collection has are not written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.images.zip import MOST_IMAGE
from nnclr_hub.store.base import Item, Progress
from nnclr_hub.store.checks import check_items
from nnclr_hub.store.exchange import same_item
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.workbench.add_request import NewImage
from nnclr_hub.workbench.image_record import FILE_HASH, PIXEL_HASH
from nnclr_hub.workbench.import_format import ImportFormat
from nnclr_hub.workbench.indexed_again import refreshed
from nnclr_hub.workbench.ingestion import read_image
from nnclr_hub.workbench.item_file import ItemFile
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.staging import Archive, Staged, images_of
from nnclr_hub.workbench.workbench import Workbench

IMAGES = 32  # per batch
IMAGE_BYTES = 64_000_000  # of a batch
ROWS = 1000  # per batch
VECTOR_BYTES = 16_000_000  # of a batch
MAX_NAMED = 100  # errors in a result
MAX_SHOWN = 200  # characters of an invalid path in a result
MAX_NAME = 4096  # bytes of the path of an image in an archive, as on Linux
Note = Callable[[Sequence[str]], None]


@dataclass
class ImportReport:
    """What became of the images or rows of a file.

    added, replaced, unchanged: numbers of items.
    errors: the name of the image, or "row N", and the reason; only the first ones.
    errors_count: number of all errors.
    left_out: numbers of files in an archive that are not images, by suffix.
    """

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    errors: list[dict[str, str]] = field(default_factory=list)
    errors_count: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def refuse(self, name: str, reason: str) -> None:
        """Record an error."""
        self.errors_count += 1
        if len(self.errors) < MAX_NAMED:
            self.errors.append({"name": name, "detail": without_paths(reason)})

    def result(self, collection: str) -> dict[str, Any]:
        """Return the report as JSON."""
        return {"collection": collection, **vars(self)}


def import_file(
    bench: Workbench,
    collection: str,
    path: Path,
    format: ImportFormat,
    *,
    progress: Progress = lambda done, total: None,
) -> ImportReport:
    """Import a file into an existing collection.

    Args:
        bench: with the collection.
        collection: its name, or an alias.
        path: of the file.
        format: of the file.
        progress: called with (done, total), in images or bytes.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidRequest: the file is damaged, or not of this format.
        MissingDependency: pyarrow is needed and not installed.
    """
    if not format.images:
        return import_items(bench, collection, ItemFile(path, format), progress)
    return ImageImport(bench, collection).run(images_of(Staged(path.name, path), MOST_IMAGE), progress)


# ------------------------------------------------------------------------------ vectors


def import_items(bench: Workbench, name: str, file: ItemFile, progress: Progress) -> ImportReport:
    """Import items by their vectors; see `import_file`. Of rows with the same id, the last one counts."""
    report, spec = ImportReport(), bench.collection(name).spec
    most = max(1, min(ROWS, VECTOR_BYTES // (4 * spec.dim)))
    rows: list[tuple[int, Item]] = []

    def write() -> None:
        progress(file.done, file.total)
        _write_items(bench, name, _valid(rows, spec, report), spec, report)
        rows.clear()

    for number, row in file:
        if isinstance(row, Item):
            rows.append((number, row))
        else:
            report.refuse(f"row {number}", row)
        if len(rows) == most:
            write()
    write()
    progress(file.total, file.total)
    return report


def _valid(rows: Sequence[tuple[int, Item]], spec: CollectionSpec, report: ImportReport) -> list[Item]:
    """Return the items that the collection accepts, and report the others."""
    try:
        return check_items([item for _, item in rows], spec)[0]  # together, which is fast
    except InvalidRequest:
        valid: dict[str, Item] = {}
        for number, item in rows:
            try:
                check_items([item], spec)
                valid[item.id] = item
            except InvalidRequest as error:
                report.refuse(f"row {number}", str(error))
        return list(valid.values())


def _write_items(
    bench: Workbench, name: str, items: Sequence[Item], spec: CollectionSpec, report: ImportReport
) -> None:
    if not items:
        return
    known = {item.id: item for item in bench.collection(name).get([item.id for item in items])}
    new = [item for item in items if item.id not in known or not _same(known[item.id], item, spec)]
    if new:
        bench.upsert(name, new, fingerprint=spec.fingerprint)
    replaced = sum(item.id in known for item in new)
    report.replaced += replaced
    report.added += len(new) - replaced
    report.unchanged += len(items) - len(new)


def _same(kept: Item, item: Item, spec: CollectionSpec) -> bool:
    [vector] = check_items([item], spec)[2]
    return same_item(kept, Item(item.id, vector, item.metadata), spec)


# ------------------------------------------------------------------------------ images


class ImageImport:
    """An import of images. An image's id is the hash of its bytes, and its label is the folder that it was in.

    Args:
        bench: with the collection.
        collection: its name.
        begun: ids that an earlier attempt began to add. If the collection has them now, this import added them.
        note: keeps ids that will be added, durably.
    """

    def __init__(
        self, bench: Workbench, collection: str, begun: Collection[str] = (), note: Note = lambda ids: None
    ) -> None:
        self.report = ImportReport()
        self._bench = bench
        self._name = collection
        self._begun = set(begun)
        self._note = note

    def run(self, archive: Archive, progress: Progress) -> ImportReport:
        """Add images; those that an earlier attempt added are counted as added, and are not embedded again.

        Args:
            archive: whose images are read one after another.
            progress: called with (done, total) in images.
        """
        images = archive.images
        self.report.left_out.update(archive.others)
        progress(0, len(images))
        batch: dict[str, NewImage] = {}  # by id
        names: list[tuple[str, str]] = []  # (id, name); files with the same bytes have the same id
        size = 0
        for done, image in enumerate(images, 1):
            invalid = _invalid_path(image.name)
            if invalid is not None:  # it becomes metadata, and the collection would refuse the whole batch
                self.report.refuse(image.name[:MAX_SHOWN], invalid)
                continue
            try:
                data = image.read()
            except ImageError as error:
                self.report.refuse(image.name, str(error))
                continue
            id = hashlib.sha256(data).hexdigest()[:32]
            metadata = {"name": PurePosixPath(image.name).name} | ({"label": image.label} if image.label else {})
            batch[id] = NewImage(id, data, metadata)
            names.append((id, image.name))
            size += len(data)
            if len(names) == IMAGES or size > IMAGE_BYTES:
                progress(done - len(names), len(images))  # which may end the import
                self._write(batch, names)
                batch, names, size = {}, [], 0
                progress(done, len(images))
        progress(len(images) - len(names), len(images))
        self._write(batch, names)
        progress(len(images), len(images))
        return self.report

    def _write(self, batch: dict[str, NewImage], names: list[tuple[str, str]]) -> None:
        """Add a batch, and report what became of each file."""
        if not batch:
            return
        kept = {item.id: item for item in self._bench.collection(self._name).get(list(batch))}
        known = set(kept)
        left = [(id, name) for id, name in names if not self._was_added(id, known)]
        # Noted before they are added: after a crash in between, the next attempt must not report them as replaced.
        self._note([id for id, _ in left if id not in known])
        new = {id: batch[id] for id, _ in left}
        unchanged = set()
        for id in new.keys() & kept.keys():
            new[id] = replace(new[id], metadata=self._metadata(kept[id], new[id]))
            if self._is_held(kept[id], new[id]):
                unchanged.add(id)
                del new[id]
        errors = self._bench.add_images(self._name, list(new.values())) if new else []
        reasons = dict(zip(new, errors, strict=True))
        for id, name in left:
            reason = reasons.get(id)
            if reason is not None:
                self.report.refuse(name, str(reason))
            elif id in unchanged:
                self.report.unchanged += 1
            elif id in known:
                self.report.replaced += 1
            else:
                self.report.added += 1
                known.add(id)

    def _metadata(self, kept: Item, image: NewImage) -> Mapping[str, Any]:
        """Return the metadata to store of an image whose item the collection has; without a hash if it is unreadable.

        Its pixels are compared, because an item may have been replaced under its id.
        """
        embedder = self._bench.embedder_of(self._bench.collection(self._name))
        result = read_image(image, embedder.reading, with_image=False)
        return image.metadata if isinstance(result, ImageError) else refreshed(kept.metadata, result[1].metadata)

    def _is_held(self, kept: Item, image: NewImage) -> bool:
        """Return whether the collection has all that adding the image would store."""
        originals = self._bench.originals
        return (
            kept.thumbnail is not None
            and PIXEL_HASH in image.metadata
            and image.metadata == kept.metadata
            and (not originals or not originals.most_bytes or originals.read(kept.metadata.get(FILE_HASH)) is not None)
        )

    def _was_added(self, id: str, known: set[str]) -> bool:
        """Return whether an earlier attempt added the image, and count it once."""
        if id not in known or id not in self._begun:
            return False
        self._begun.discard(id)
        self.report.added += 1
        return True


def _invalid_path(path: str) -> str | None:
    """Return why the path of an image cannot be stored, or None."""
    size = len(path.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME:
        return f"The path must be at most {MAX_NAME} bytes, got {size}; rename the image."
    return "The path must not contain NUL characters; rename the image." if "\0" in path else None
