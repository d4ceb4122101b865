"""The kinds of jobs that fill a collection: from uploaded files, and from a folder on the server."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from nnclr_hub.workbench.file_import import ImageImport, ImportReport, import_items
from nnclr_hub.workbench.folder_changes import FolderChanges
from nnclr_hub.workbench.import_format import FORMATS
from nnclr_hub.workbench.item_file import ItemFile
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.staging import images_of, note, noted, staged

from .context import ROOT, UPLOAD, JobContext, Outcome


def add(context: JobContext) -> Outcome:
    """Add the images of an uploaded archive. Unreadable images are reported."""
    ticket, name = context.params[UPLOAD], context.params["collection"]
    images_import = ImageImport(context.bench, name, noted(ticket), partial(note, ticket))
    archive = images_of(staged(ticket), context.params["max_bytes"])
    return _outcome(images_import.run(archive, context.progress), name)


def import_vectors(context: JobContext) -> Outcome:
    """Import items by their vectors from an uploaded file. Invalid rows are reported."""
    file = staged(context.params[UPLOAD])
    rows = ItemFile(file.path, FORMATS[context.params["format"]])
    name = context.params["collection"]
    return _outcome(import_items(context.bench, name, rows, context.progress), name)


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
    report = ImportReport(indexed.added + before["new"], indexed.updated + before["changed"], unchanged)
    for path, reason in indexed.broken:
        report.refuse(Path(path).relative_to(folder).as_posix(), reason)
    report.left_out.update(indexed.left_out)
    removed = indexed.removed + before["gone"] if prune else 0
    return Outcome({**report.result(name), "removed": removed, "kept": indexed.kept})


def _outcome(report: ImportReport, name: str) -> Outcome:
    return Outcome(report.result(name))
