"""The jobs that add images: those that wait under a ticket, and those of a folder of this machine."""

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
from nnclr_hub.workbench.staged_images import StagedImage, staged_images
from nnclr_hub.workbench.staging import note, noted

from .outcome import Outcome
from .task import ROOT, UPLOAD, Task

BATCH = 32
BATCH_BYTES = 64_000_000
NAMED_MOST = 100


@dataclass
class _Told:
    """What became of the images so far.

    begun: ids that an earlier attempt began to add, so that those in the collection are its own.
    """

    begun: set[str]
    added: int = 0
    replaced: int = 0
    errors: list[dict[str, str]] = field(default_factory=list)

    def refuse(self, name: str, reason: str) -> None:
        self.errors.append({"name": name, "detail": without_paths(reason)})

    def result(self, collection: str) -> dict[str, Any]:
        told = {"collection": collection, "added": self.added, "replaced": self.replaced}
        return {**told, "errors": self.errors[:NAMED_MOST], "errors_count": len(self.errors)}


def add(task: Task) -> Outcome:
    """Adds what waits under a ticket, zips image by image; an image that cannot be read is told and left out.

    The id of an image is the hash of its bytes, as that of an upload by REST. What was added before the job was cut
    short is looked up, and neither embedded again nor told as having been there already. Its label is the folder that
    it lay in.
    """
    return Outcome(_add(task).result(task.params["collection"]))


def index(task: Task) -> Outcome:
    """Makes the collection hold the images of a folder below one of the server's source folders.

    What an attempt that was cut short did is told as done, and not as having been there already.
    """
    folder = SourceFolders(task.source_folders).again(task.params[ROOT], task.params["folder"]).path
    name, prune = task.params["collection"], task.params.get("prune", False)
    left: dict[str, int] = {}

    def begin(changes: FolderChanges) -> None:
        left.update(changes.counts)
        if not task.notes:
            task.keep(left)

    report = task.bench.index_folder(name, folder, prune=prune, begin=begin, progress=task.progress)
    before = {what: max(0, task.notes[what] - number) for what, number in left.items()}
    told = _Told(set(), report.added + before["new"], report.updated + before["changed"])
    for path, reason in report.broken:
        told.refuse(Path(path).relative_to(folder).as_posix(), reason)
    unchanged = max(0, report.unchanged - before["new"] - before["changed"])
    removed = report.removed + before["gone"] if prune else 0
    return Outcome({**told.result(name), "unchanged": unchanged, "removed": removed, "kept": report.kept})


# ---- inside


def _add(task: Task) -> _Told:
    told = _Told(noted(task.params[UPLOAD]))
    with staged_images(task.params[UPLOAD], task.params["max_bytes"]) as (pictures, left_out):
        for name, reason in left_out:
            told.refuse(name, reason)
        task.progress(0, len(pictures))
        batch: list[NewImage] = []
        names: list[str] = []
        size = 0
        for done, picture in enumerate(pictures, 1):
            try:
                data = picture.read()
            except ImageError as error:
                told.refuse(picture.name, str(error))
                continue
            batch.append(_new(picture, data))
            names.append(picture.name)
            size += len(data)
            if len(batch) == BATCH or size > BATCH_BYTES:
                _write(task, batch, names, told)
                batch, names, size = [], [], 0
                task.progress(done, len(pictures))
        _write(task, batch, names, told)
        task.progress(len(pictures), len(pictures))
    return told


def _new(picture: StagedImage, data: bytes) -> NewImage:
    metadata = {"name": PurePosixPath(picture.name).name} | ({"label": picture.label} if picture.label else {})
    return NewImage(hashlib.sha256(data).hexdigest()[:32], data, metadata)


def _write(task: Task, batch: list[NewImage], names: list[str], told: _Told) -> None:
    """Adds a batch; the same image twice in it is one."""
    if not batch:
        return
    task.check()
    collection = task.params["collection"]
    found = task.bench.collection(collection).get([one.id for one in batch])
    known = {item.id for item in found if item is not None}
    left = [(one, name) for one, name in zip(batch, names, strict=True) if not _was_added(one.id, known, told)]
    note(task.params[UPLOAD], [one.id for one, _ in left if one.id not in known])
    each = {one.id: one for one, _ in left}
    errors = task.bench.add_images(collection, list(each.values())) if each else []
    reasons = dict(zip(each, errors, strict=True))
    for one, name in left:
        reason = reasons[one.id]
        if reason is not None:
            told.refuse(name, str(reason))
        elif one.id in known:
            told.replaced += 1
        else:
            told.added += 1
            known.add(one.id)


def _was_added(id: str, known: set[str], told: _Told) -> bool:
    """Whether an earlier attempt added it; counts it, once."""
    if id not in known or id not in told.begun:
        return False
    told.begun.discard(id)
    told.added += 1
    return True
