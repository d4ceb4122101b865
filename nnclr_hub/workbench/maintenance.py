"""The tasks that look after a store: verify, compact, backup. Each returns its report as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nnclr_hub.errors import InvalidRequest, NNCLRHubError
from nnclr_hub.store.backup import back_up
from nnclr_hub.workbench.bench import Bench, LocalBench
from nnclr_hub.workbench.requests import Request, option
from nnclr_hub.workbench.tasks import TaskContext, task

MAX_IDS = 1000  # most ids in a result, for each kind of damage


@dataclass(frozen=True)
class CollectionRequest(Request):
    """Maintenance of a collection."""

    collection: str = option("name or alias of the collection")


@task("verify", CollectionRequest, path="/collections/{collection}/verify")
def verify(bench: Bench, request: CollectionRequest, context: TaskContext) -> dict[str, Any]:
    """Read every vector back, and compare the index with an exhaustive search on a sample."""
    collection = bench.collection(request.collection)
    report = collection.verify(context.progress)
    found = {name: list(one[:MAX_IDS]) if isinstance(one, tuple) else one for name, one in vars(report).items()}
    return {"collection": collection.name, "ok": report.ok, **found}


@task("compact", CollectionRequest, path="/collections/{collection}/compact")
def compact(bench: Bench, request: CollectionRequest, context: TaskContext) -> dict[str, Any]:
    """Rebuild the index of a collection without deleted items."""
    collection = bench.collection(request.collection)
    collection.compact(context.progress)
    return {"collection": collection.name, "items": collection.count(), "index": collection.info().index}


@dataclass(frozen=True)
class BackupRequest(Request):
    """A backup of the whole store."""

    keep: int | None = option("number of backups to keep; older ones are removed", None, ge=1, le=1_000_000)
    destination: str | None = option("folder or address; null: the destination of the server", None, hidden=True)


@task("backup", BackupRequest, path="/store/backups", query=True)
def backup(bench: LocalBench, request: BackupRequest, context: TaskContext) -> dict[str, Any]:
    """Add a backup to those at the destination."""
    to = request.destination or bench.backup_to
    if not to:
        raise InvalidRequest("Name the folder or address for backups, as in `nnclr store backup /mnt/backups`.")
    try:
        return asdict(back_up(bench.store, to, request.keep, progress=context.progress))
    except NNCLRHubError as error:
        if request.destination is None:  # a client neither sees nor chooses the destination of a server
            error.args = (str(error).replace(to, "the destination"),)
        raise
