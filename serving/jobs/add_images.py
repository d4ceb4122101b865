"""The kinds of jobs that fill a collection: from uploaded files, and from a folder on the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nnclr_hub.workbench.file_import import ImportReport, ImportRequest, import_file
from nnclr_hub.workbench.folder_changes import FolderChanges
from nnclr_hub.workbench.import_format import format_of_file
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.staging import staged
from nnclr_hub.workbench.tasks import TaskContext

from .context import ROOT, UPLOAD, JobContext, Outcome


def add(context: JobContext) -> Outcome:
    """Add the images of an uploaded archive. Unreadable images are reported."""
    return _import(context, max_bytes=context.params["max_bytes"])


def import_vectors(context: JobContext) -> Outcome:
    """Import items by their vectors from an uploaded file. Invalid rows are reported."""
    return _import(context, format=context.params["format"])


def _import(context: JobContext, **options: Any) -> Outcome:
    file = staged(context.params[UPLOAD])
    format = options.pop("format", "") or format_of_file(file.name).name
    request = ImportRequest(context.params["collection"], str(file.path), format, file.name, **options)
    seen = TaskContext(context.progress, context.check, state=context.notes, save=context.keep)
    return Outcome(import_file(context.bench, request, seen).as_json())


def index(context: JobContext) -> Outcome:
    """Make a collection match a folder below one of the server's source folders.

    The notes keep the counts of the first attempt, so that a restarted job reports what it did in total.
    """
    folder = SourceFolders(context.source_folders).again(context.params[ROOT], context.params["folder"]).path
    name, prune = context.params["collection"], context.params["prune"]
    left: dict[str, int] = {}

    def begin(changes: FolderChanges) -> None:
        left.update(changes.counts)
        if not context.notes:
            context.keep(left)

    indexed = context.bench.index_folder(name, folder, prune=prune, begin=begin, progress=context.progress)
    before = {what: max(0, context.notes[what] - number) for what, number in left.items()}
    unchanged = max(0, indexed.unchanged - before["new"] - before["changed"])
    report = ImportReport(name, indexed.added + before["new"], indexed.updated + before["changed"], unchanged)
    for path, reason in indexed.broken:
        report.refuse(Path(path).relative_to(folder).as_posix(), reason)
    report.left_out.update(indexed.left_out)
    removed = indexed.removed + before["gone"] if prune else 0
    return Outcome({**report.as_json(), "removed": removed, "kept": indexed.kept})
