"""The tasks that look after a store: verify, compact, backup."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nnclr_hub.errors import InvalidRequest, NNCLRHubError
from nnclr_hub.store.backup import BackupReport, back_up
from nnclr_hub.store.reports import VerifyReport
from nnclr_hub.workbench.tasks import JOBS, Request, TaskContext, option, task
from nnclr_hub.workbench.workbench import Workbench

MAX_IDS = 1000  # of each kind of damage, in a result


@dataclass(frozen=True)
class CollectionRequest(Request):
    """Maintenance of a collection."""

    collection: str = option("name or alias of the collection")


@dataclass(frozen=True)
class Verified:
    """The result of a verification, with at most 1000 ids of each kind of damage."""

    collection: str
    report: VerifyReport

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        report = {
            key: list(value[:MAX_IDS]) if isinstance(value, tuple) else value
            for key, value in vars(self.report).items()
        }
        return {"collection": self.collection, "ok": self.report.ok, **report}


@task("verify", CollectionRequest, path=JOBS)
def verify(bench: Workbench, request: CollectionRequest, context: TaskContext) -> Verified:
    """Read every vector back, and compare the index with an exhaustive search on a sample."""
    collection = bench.collection(request.collection)
    return Verified(collection.name, collection.verify(context.progress))


@dataclass(frozen=True)
class Compacted:
    """The state of a collection after its index was rebuilt."""

    collection: str
    items: int
    index: str

    def as_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return asdict(self)


@task("compact", CollectionRequest, path=JOBS)
def compact(bench: Workbench, request: CollectionRequest, context: TaskContext) -> Compacted:
    """Rebuild the index of a collection without deleted items."""
    collection = bench.collection(request.collection)
    collection.compact(context.progress)
    return Compacted(collection.name, collection.count(), collection.info().index)


@dataclass(frozen=True)
class BackupRequest(Request):
    """A backup of the whole store."""

    keep: int | None = option("number of backups to keep; older ones are removed", None, ge=1, le=1_000_000)
    to: str | None = option("folder or address; null: the destination of the server", None, hidden=True)


@dataclass(frozen=True)
class BackedUp:
    """The result of a backup."""

    report: BackupReport

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self.report)


@task("backup", BackupRequest, path="/store/backups", query=True)
def backup(bench: Workbench, request: BackupRequest, context: TaskContext) -> BackedUp:
    """Add a backup to those at the destination."""
    to = request.to or bench.backup_to
    if not to:
        raise InvalidRequest("This server makes no backups; set NNCLR_BACKUP_TO to a folder or an address.")
    try:
        return BackedUp(back_up(bench.store, to, request.keep, progress=context.progress))
    except NNCLRHubError as error:
        if request.to is None:  # a client neither sees nor chooses the destination of a server
            error.args = (str(error).replace(to, "the destination"),)
        raise
