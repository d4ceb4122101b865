"""The kinds of jobs that add images: uploaded files, and a folder on the server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nnclr_hub.errors import ImageError
from nnclr_hub.workbench import NewImage
from nnclr_hub.workbench.folder_changes import FolderChanges
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.staging import note, noted, staged_images

from .context import ROOT, UPLOAD, JobContext, Outcome

BATCH = 32
BATCH_BYTES = 64_000_000
MAX_NAMED = 100  # errors in the result


@dataclass
class _Report:
    """What became of the images so far.

    begun: ids that an earlier attempt began to add. If the collection has them now, this job added them.
    """

    begun: set[str]
    added: int = 0
    replaced: int = 0
    errors: list[dict[str, str]] = field(default_factory=list)

    def refuse(self, name: str, reason: str) -> None:
        self.errors.append({"name": name, "detail": without_paths(reason)})

    def result(self, collection: str) -> dict[str, Any]:
        counts = {"collection": collection, "added": self.added, "replaced": self.replaced}
        return {**counts, "errors": self.errors[:MAX_NAMED], "errors_count": len(self.errors)}


def add(context: JobContext) -> Outcome:
    """Add the uploaded files of a ticket, and the images inside uploaded zips. Unreadable images are reported.

    An image's id is the hash of its bytes, as for uploads by REST, and its label is the folder that it was in.
    Images that an earlier attempt added are counted as added, and are not embedded again.
    """
    report = _Report(noted(context.params[UPLOAD]))
    with staged_images(context.params[UPLOAD], context.params["max_bytes"]) as (images, left_out):
        for name, reason in left_out:
            report.refuse(name, reason)
        context.progress(0, len(images))
        batch: dict[str, NewImage] = {}  # by id
        names: list[tuple[str, str]] = []  # (id, name); files with the same bytes have the same id
        size = 0
        for done, image in enumerate(images, 1):
            try:
                data = image.read()
            except ImageError as error:
                report.refuse(image.name, str(error))
                continue
            id = hashlib.sha256(data).hexdigest()[:32]
            metadata = {"name": PurePosixPath(image.name).name} | ({"label": image.label} if image.label else {})
            batch[id] = NewImage(id, data, metadata)
            names.append((id, image.name))
            size += len(data)
            if len(names) == BATCH or size > BATCH_BYTES:
                _write(context, batch, names, report)
                batch, names, size = {}, [], 0
                context.progress(done, len(images))
        _write(context, batch, names, report)
        context.progress(len(images), len(images))
    return Outcome(report.result(context.params["collection"]))


def index(context: JobContext) -> Outcome:
    """Make a collection match a folder below one of the server's source folders.

    The notes keep the counts of the first attempt, so that a restarted job reports what it did in total.
    """
    folder = SourceFolders(context.source_folders).again(context.params[ROOT], context.params["folder"]).path
    name, prune = context.params["collection"], context.params.get("prune", False)
    left: dict[str, int] = {}

    def begin(changes: FolderChanges) -> None:
        left.update(changes.counts)
        if not context.notes:
            context.keep(left)

    indexed = context.bench.index_folder(name, folder, prune=prune, begin=begin, progress=context.progress)
    before = {what: max(0, context.notes[what] - number) for what, number in left.items()}
    report = _Report(set(), indexed.added + before["new"], indexed.updated + before["changed"])
    for path, reason in indexed.broken:
        report.refuse(Path(path).relative_to(folder).as_posix(), reason)
    unchanged = max(0, indexed.unchanged - before["new"] - before["changed"])
    removed = indexed.removed + before["gone"] if prune else 0
    return Outcome({**report.result(name), "unchanged": unchanged, "removed": removed, "kept": indexed.kept})


def _write(context: JobContext, batch: dict[str, NewImage], names: list[tuple[str, str]], report: _Report) -> None:
    """Add a batch, and report what became of each file."""
    if not batch:
        return
    context.check()
    collection = context.params["collection"]
    found = context.bench.collection(collection).get(list(batch))
    known = {item.id for item in found if item is not None}
    left = [(id, name) for id, name in names if not _was_added(id, known, report)]
    # Noted before they are added: after a crash in between, the next attempt must not report them as replaced.
    note(context.params[UPLOAD], [id for id, _ in left if id not in known])
    new = {id: batch[id] for id, _ in left}
    errors = context.bench.add_images(collection, list(new.values())) if new else []
    reasons = dict(zip(new, errors, strict=True))
    for id, name in left:
        reason = reasons[id]
        if reason is not None:
            report.refuse(name, str(reason))
        elif id in known:
            report.replaced += 1
        else:
            report.added += 1
            known.add(id)


def _was_added(id: str, known: set[str], report: _Report) -> bool:
    """Return whether an earlier attempt added the image, and count it once."""
    if id not in known or id not in report.begun:
        return False
    report.begun.discard(id)
    report.added += 1
    return True
