"""Import a file into a collection: images in an archive, or items by their vectors.

    bench.run("import", ImportRequest("photos", "photos.zip"))
    bench.run("import", ImportRequest("vectors", "items.ndjson"))

An invalid image or row is reported, and the others are stored. An import that was interrupted can be repeated: items
that the collection has are not written again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.images.listing import MOST_FILES, list_archive
from nnclr_hub.images.source import Place, Source
from nnclr_hub.json_text import is_utf8
from nnclr_hub.read_ahead import batches
from nnclr_hub.store.base import Item
from nnclr_hub.store.checks import check_items
from nnclr_hub.store.exchange import same_item
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.workbench.bench import LocalBench
from nnclr_hub.workbench.ingestion import read_image, refreshed
from nnclr_hub.workbench.item_file import read_items
from nnclr_hub.workbench.metadata import FILE_HASH, PIXEL_HASH
from nnclr_hub.workbench.originals import Originals
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.requests import FORMATS, ImportFormat, NewImage, Request, format_of_file, option
from nnclr_hub.workbench.tasks import TaskContext, task

IMAGES = 32  # per batch
IMAGE_BYTES = 64_000_000  # in a batch
ROWS = 1000  # per batch
VECTOR_BYTES = 16_000_000  # in a batch
MAX_NAMED = 100  # errors in a result
MAX_SHOWN = 200  # characters of an invalid path in a result
MOST_IMAGE = 20_000_000  # bytes
MAX_NAME = 4096  # bytes of the path of an image in an archive, as on Linux


@dataclass(frozen=True)
class ImportRequest(Request):
    """A file of images or vectors to import into an existing collection."""

    collection: str = option("name or alias of the collection")
    path: str = option("path of the file", hidden=True)
    format: str = option("zip, tar, ndjson, arrow or parquet; empty: by the suffix of the file", "")
    file: str = option("name of the file", "")
    max_bytes: int = option("largest image", MOST_IMAGE, hidden=True)

    def validate(self) -> None:
        """Raise InvalidRequest for an unknown format."""
        super().validate()
        if self.format and self.format not in FORMATS:
            raise InvalidRequest(f"format must be one of {', '.join(FORMATS)}, got {self.format!r:.80}.")

    @property
    def kind(self) -> ImportFormat:
        """The format of the file."""
        return FORMATS[self.format] if self.format else format_of_file(self.path)


@dataclass
class ImportReport:
    """What became of the images or rows of a file.

    added, replaced, unchanged: numbers of items.
    errors: the name of the image, or "row N", and the reason; only the first ones.
    errors_count: number of all errors.
    left_out: numbers of files in an archive that are not images, by suffix.
    """

    collection: str
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

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return dict(vars(self))


@task("import", ImportRequest, path="/collections/{collection}/imports", upload="path")
def import_file(bench: LocalBench, request: ImportRequest, context: TaskContext) -> dict[str, Any]:
    """Import a file into an existing collection; return an ImportReport as JSON.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidRequest: the file is damaged, or not of this format.
        MissingDependency: pyarrow is needed and not installed.
    """
    return (_import_images if request.kind.images else _import_items)(bench, request, context).as_json()


# ---- vectors


def _import_items(bench: LocalBench, request: ImportRequest, context: TaskContext) -> ImportReport:
    """Import items by their vectors. Of rows with the same id, the last one counts."""
    path, name = Path(request.path), request.collection
    size, report, spec = path.stat().st_size, ImportReport(name), bench.collection(name).spec
    most = max(1, min(ROWS, VECTOR_BYTES // (4 * spec.dim)))
    for rows in batches(read_items(path, request.kind), most):
        context.progress(min(rows[-1][2], size), size)
        good = []
        for number, item, _ in rows:
            if isinstance(item, Item):
                good.append((number, item))
            else:
                report.refuse(f"row {number}", item)
        _write_items(bench, name, _valid(good, spec, report), spec, report)
    context.progress(size, size)
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
    bench: LocalBench, name: str, items: Sequence[Item], spec: CollectionSpec, report: ImportReport
) -> None:
    known = {item.id: item for item in bench.collection(name).get([item.id for item in items])} if items else {}
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


# ---- images


def _import_images(bench: LocalBench, request: ImportRequest, context: TaskContext) -> ImportReport:
    """Import the images of an archive. An image's id is the hash of its bytes, and its label is its folder.

    The state of the task holds the report before a batch and the ids that the batch adds. So a repeated attempt does
    not report them as replaced.
    """
    images, left_out = _list_images(request)
    state, total, name = context.state, len(images), request.collection
    done: int = state.get("done", 0)
    adding = set(state.get("adding", ()))
    report = ImportReport(**state["report"]) if state else ImportReport(name, left_out=left_out)
    context.progress(done, total)
    for batch in batches(images[done:], IMAGES, lambda one: one.size, IMAGE_BYTES):
        before = {"done": done, "report": report.as_json() | {"errors": list(report.errors)}}
        new, names = _read_images(batch, request.max_bytes, report)
        kept: dict[str, Item] = {item.id: item for item in bench.collection(name).get(list(new))} if new else {}
        for id in adding & kept.keys():  # by the attempt before
            report.added += 1
            names.remove(next(one for one in names if one[0] == id))
        adding = set()
        context.raise_if_cancelled()
        context.save({**before, "adding": [id for id in new if id not in kept]})
        _add_images(bench, name, {id: new[id] for id, _ in names}, names, kept, report)
        done += len(batch)
        context.progress(done, total)
    return report


def _list_images(request: ImportRequest) -> tuple[list[Source], dict[str, int]]:
    """List the images of an archive, of equal paths the last one; count the other files, links and images by suffix."""
    path, name = Path(request.path), request.file or request.path
    place, found = list_archive(Place(name, str(path), f".{request.kind.name}", path.stat().st_mtime), limited=True)
    images = {one.path: one for one in found}
    if not images:
        raise InvalidRequest(f"{name} holds no images; put JPEG, PNG or other images into it.")
    if len(images) > MOST_FILES:
        raise InvalidRequest(f"{name} holds more than {MOST_FILES:,} images; split it into several archives.")
    return [*images.values()], dict(place.left_out)


def _read_images(
    batch: Iterable[Source], most_bytes: int, report: ImportReport
) -> tuple[dict[str, NewImage], list[tuple[str, str]]]:
    """Return images by id, and the id and name of each file: files with the same bytes have the same id."""
    new: dict[str, NewImage] = {}
    names: list[tuple[str, str]] = []
    for image in batch:
        invalid = _invalid_path(image.path)
        if invalid is not None:  # it becomes metadata, and the collection would refuse the whole batch
            report.refuse(image.path[:MAX_SHOWN], invalid)
            continue
        try:
            data = image.read(most_bytes)
        except ImageError as error:
            report.refuse(image.path, str(error))
            continue
        id = hashlib.sha256(data).hexdigest()[:32]
        metadata = {"name": image.name} | ({"label": image.folder} if image.folder else {})
        new[id] = NewImage(id, data, metadata)
        names.append((id, image.path))
    return new, names


def _add_images(
    bench: LocalBench,
    name: str,
    new: dict[str, NewImage],
    names: Sequence[tuple[str, str]],
    kept: Mapping[str, Item],
    report: ImportReport,
) -> None:
    """Add a batch, and report what became of each file."""
    unchanged, known = set(), set(kept)
    for id in new.keys() & kept.keys():
        # pixels are compared, because an item may have been replaced under its id
        result = read_image(new[id], bench.embedder_of(bench.collection(name)).reading, with_image=False)
        if not isinstance(result, ImageError):
            new[id] = replace(new[id], metadata=refreshed(kept[id].metadata, result[1].metadata))
            if _is_held(bench.originals, kept[id], new[id]):
                unchanged.add(id)
                del new[id]
    errors = dict(zip(new, bench.add_images(name, list(new.values())) if new else (), strict=True))
    for id, file in names:
        if errors.get(id) is not None:
            report.refuse(file, str(errors[id]))
        elif id in unchanged:
            report.unchanged += 1
        elif id in known:
            report.replaced += 1
        else:
            report.added += 1
            known.add(id)


def _is_held(originals: Originals | None, kept: Item, image: NewImage) -> bool:
    return (
        kept.thumbnail is not None
        and PIXEL_HASH in image.metadata
        and image.metadata == kept.metadata
        and (not originals or not originals.most_bytes or originals.read(kept.metadata.get(FILE_HASH)) is not None)
    )


def _invalid_path(path: str) -> str | None:
    size = len(path.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME:
        return f"The path must be at most {MAX_NAME} bytes, got {size}; rename the image."
    return None if is_utf8(path) and "\0" not in path else "The path must be UTF-8 without NUL; rename the image."
