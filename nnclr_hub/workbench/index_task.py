"""The task `index`: make a collection match a folder that a server may read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnclr_hub.workbench.file_import import ImportReport
from nnclr_hub.workbench.folder_changes import FolderChanges
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.tasks import Request, TaskContext, option, task
from nnclr_hub.workbench.workbench import Workbench


@dataclass(frozen=True)
class IndexRequest(Request):
    """A folder on the server."""

    collection: str = option("name or alias of the collection")
    source: str | None = option("name of one of the server's source folders; null if there is only one", None)
    folder: str = option(
        "folder in the source folder, including its subfolders; empty: the whole source folder", "", max_length=4096
    )
    prune: bool = option(
        "delete items of this folder whose file no longer exists. Refused if the folder is empty, because its disk may "
        "not be mounted. Items of a subfolder that is empty, a link or unreadable are kept; the result counts them as "
        "`kept`",
        False,
    )
    root: str | None = option(
        "path of the source folder, whose name may change when a server restarts", None, hidden=True
    )


@dataclass(frozen=True)
class Indexed:
    """The result of indexing a folder.

    removed: number of items whose file no longer exists.
    kept: number of items whose file may exist.
    """

    report: ImportReport
    removed: int
    kept: int

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, and the first images that could not be read."""
        return {**self.report.as_json(), "removed": self.removed, "kept": self.kept}


@task("index", IndexRequest, path="/collections/{collection}/index")
def index_source(bench: Workbench, request: IndexRequest, context: TaskContext) -> Indexed:
    """Make a collection match a folder in one of the source folders.

    The state keeps the counts of the first attempt, so that a restarted job reports what it did in total.
    """
    folders = SourceFolders(bench.source_folders or ())
    place = folders.find(request.source, request.folder) if request.root is None else None
    folder = (place or folders.again(str(request.root), request.folder)).path
    left: dict[str, int] = {}

    def begin(changes: FolderChanges) -> None:
        left.update(changes.counts)
        if not context.state:
            context.save(left)

    options = {"prune": request.prune, "begin": begin, "progress": context.progress}
    indexed = bench.index_folder(request.collection, folder, **options)
    before = {what: max(0, context.state[what] - number) for what, number in left.items()}
    unchanged = max(0, indexed.unchanged - before["new"] - before["changed"])
    report = ImportReport(
        request.collection, indexed.added + before["new"], indexed.updated + before["changed"], unchanged
    )
    for path, reason in indexed.broken:
        report.refuse(Path(path).relative_to(folder).as_posix(), reason)
    report.left_out.update(indexed.left_out)
    return Indexed(report, indexed.removed + before["gone"] if request.prune else 0, indexed.kept)
