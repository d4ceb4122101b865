"""The jobs that add pictures: those that wait under a ticket, and those of a folder of this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from nnclr_hub.encoder.image_folder import label_of
from nnclr_hub.errors import ImageError, InvalidRequest, NNCLRHubError
from nnclr_hub.workbench import NewImage, Workbench
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.staging import Staged, staged, unstage
from nnclr_hub.workbench.zips import SUFFIX, PictureZip

from .outcome import Outcome
from .task import Task

BATCH = 32
BATCH_BYTES = 64_000_000
NAMED_MOST = 100
UPLOAD = "upload"  # parameter of the job: the ticket


@dataclass
class _Told:
    """What became of the pictures so far."""

    added: int = 0
    replaced: int = 0
    errors: list[dict[str, str]] = field(default_factory=list)

    def refuse(self, name: str, reason: str) -> None:
        self.errors.append({"name": name, "detail": without_paths(reason)})

    def result(self, collection: str) -> dict[str, Any]:
        told = {"collection": collection, "added": self.added, "replaced": self.replaced}
        return {**told, "errors": self.errors[:NAMED_MOST], "errors_count": len(self.errors)}


def add(task: Task) -> Outcome:
    """Adds what waits under a ticket, zips picture by picture; a picture that cannot be read is told and left out.

    The id of a picture is the hash of its bytes, as that of an upload by REST, so that what was added before the job
    was cut short is written again and not twice. Its label is the folder that it lay in.
    """
    try:
        told = _add(task)
    except NNCLRHubError:
        unstage(task.params[UPLOAD])
        raise
    unstage(task.params[UPLOAD])
    return Outcome(told.result(task.params["collection"]))


def clean_up(bench: Workbench, params: Mapping[str, Any]) -> None:
    """What a cancelled job has not added goes."""
    unstage(params[UPLOAD])


def index(task: Task) -> Outcome:
    """Makes the collection hold the pictures of a folder below one of the server's source folders."""
    root = task.source_folders[task.params["root"]].resolve()
    folder = (root / task.params["folder"]).resolve()
    if not folder.is_relative_to(root):
        raise InvalidRequest(f"The folder {task.params['folder']!r:.150} lies elsewhere: name one below the server's.")
    report = task.bench.index_folder(task.params["collection"], folder, progress=task.progress)
    told = _Told(report.added, report.updated)
    for path, reason in report.broken:
        told.refuse(Path(path).relative_to(folder).as_posix(), reason)
    return Outcome({**told.result(task.params["collection"]), "unchanged": report.unchanged})


# ---- inside


def _add(task: Task) -> _Told:
    told = _Told()
    with ExitStack() as opened:
        sources = list(_sources(staged(task.params[UPLOAD]), task.params["max_bytes"], told, opened))
        task.progress(0, len(sources))
        batch: list[NewImage] = []
        names: list[str] = []
        size = 0
        for done, (name, label, read) in enumerate(sources, 1):
            try:
                data = read()
            except ImageError as error:
                told.refuse(name, str(error))
                continue
            batch.append(_new(name, label, data))
            names.append(name)
            size += len(data)
            if len(batch) == BATCH or size > BATCH_BYTES:
                _write(task, batch, names, told)
                batch, names, size = [], [], 0
                task.progress(done, len(sources))
        _write(task, batch, names, told)
        task.progress(len(sources), len(sources))
    return told


def _sources(files: list[Staged], most_bytes: int, told: _Told, opened: ExitStack) -> Iterator[tuple[str, str, Any]]:
    """(name, label, how to read it) of each picture, zips being looked into."""
    for file in files:
        if not file.name.lower().endswith(SUFFIX):
            yield file.name, label_of(Path(file.name), Path()) or "", partial(_read, file.path, most_bytes)
            continue
        zip = opened.enter_context(PictureZip(file.path, file.name, most_bytes))
        for name, reason in zip.left_out:
            told.refuse(name, reason)
        root = _root(zip.names)
        for name in zip.names:
            yield name, label_of(Path(name), root) or "", partial(zip.read, name)


def _root(names: list[str]) -> Path:
    """The folder that was packed, if all pictures lie in one: it is no label."""
    tops = {"/".join(PurePosixPath(name).parts[:-1][:1]) for name in names}
    return Path(tops.pop()) if len(tops) == 1 else Path()


def _read(path: Path, most_bytes: int) -> bytes:
    if path.stat().st_size > most_bytes:
        raise ImageError(f"It has more than {most_bytes / 1e6:,.0f} MB: make the picture smaller.")
    return path.read_bytes()


def _new(name: str, label: str, data: bytes) -> NewImage:
    metadata = {"name": PurePosixPath(name).name} | ({"label": label} if label else {})
    return NewImage(hashlib.sha256(data).hexdigest()[:32], data, metadata)


def _write(task: Task, batch: list[NewImage], names: list[str], told: _Told) -> None:
    """Adds a batch; the same picture twice in it is one."""
    if not batch:
        return
    task.check()
    collection = task.params["collection"]
    found = task.bench.collection(collection).get([one.id for one in batch])
    known = {item.id for item in found if item is not None}
    errors = task.bench.add_images(collection, list({one.id: one for one in batch}.values()))
    reasons = dict(zip({one.id: None for one in batch}, errors, strict=True))
    for one, name in zip(batch, names, strict=True):
        reason = reasons[one.id]
        if reason is not None:
            told.refuse(name, str(reason))
        elif one.id in known:
            told.replaced += 1
        else:
            told.added += 1
            known.add(one.id)
