"""Background jobs of a server: start them, follow their progress, wait for them, cancel them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnclr_hub.client.answers import make_error
from nnclr_hub.client.steps import Call, Pause, Steps, perform
from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, NNCLRHubError, ServiceError
from nnclr_hub.store.base import Where
from nnclr_hub.store.checks import check_collection_name
from nnclr_hub.workbench.inspections import LABEL_NEXT

if TYPE_CHECKING:
    from nnclr_hub.workbench.duplicates import Threshold

ROOT = "/api/v1/jobs"
COLLECTIONS = "/api/v1/collections"
ENDED = ("done", "failed", "cancelled")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between two requests for the state of a job
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Job:
    """The state of a job.

    state: queued, running, done, failed or cancelled.
    done, total: the progress; total is 0 until it is known.
    eta_s: estimated remaining seconds, if known.
    result: JSON, once it is done.
    error: why it failed.
    """

    id: str
    kind: str
    state: str
    done: int
    total: int
    eta_s: float | None
    result: Mapping[str, Any] | None
    error: NNCLRHubError | None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


def compact(name: str) -> Steps[Job]:
    """Start to compact a collection; `jobs.wait` waits for it, and for the jobs below.

    Raises:
        CollectionNotFound: names the existing ones.
    """
    return _start(ROOT, {"kind": "compact", "collection": check_collection_name(name)})


def verify(name: str) -> Steps[Job]:
    """Start to verify a collection of any size; the job's result has at most 1000 ids of each kind of damage.

    Raises:
        CollectionNotFound: names the existing ones.
    """
    return _start(ROOT, {"kind": "verify", "collection": check_collection_name(name)})


def duplicates(
    name: str, threshold: Threshold = None, *, where: Where | None = None, exact: bool = False, limit: int = 1000
) -> Steps[Job]:
    """Start to find duplicate items; the job's result has them in groups.

    Args:
        threshold: the lowest score of a pair; auto: above chance in this collection; None: equal pixels.
        where, exact: only items that pass; compare each with every other. Both need a threshold.
        limit: number of groups to return, the largest first.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidFilter: `where` is not a valid filter.
        InvalidRequest: another argument is invalid.
    """
    body = {"threshold": threshold, "where": where, "exact": exact, "limit": limit}
    return _start(f"{COLLECTIONS}/{check_collection_name(name)}/duplicates", body)


def inspect(name: str, field: str = "label", *, write_fields: bool = False, label_next: int = LABEL_NEXT) -> Steps[Job]:
    """Start to inspect a collection; `inspection` returns what was found when the job is done.

    Args:
        field: metadata key of the label.
        write_fields: write the findings into the metadata of the items; see `workbench.inspection.findings`.
        label_next: number of items to label next, at most.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidRequest: an argument is invalid.
    """
    body = {"field": field, "write_fields": write_fields, "label_next": label_next}
    return _start(f"{COLLECTIONS}/{check_collection_name(name)}/inspections", body)


def compare(name: str, models: Sequence[str] | None = None, *, field: str = "label") -> Steps[Job]:
    """Start to compare encoders on a collection's thumbnails; the job's result has their scores and a conclusion.

    Args:
        models: that the server serves, or pixels, hog, shape, color, hog+color; None: all of the server, and pixels.
        field: metadata key of the label.

    Raises:
        CollectionNotFound: the collection does not exist.
        UnknownModel: the server does not have one of the models.
        InvalidRequest: an argument is invalid.
    """
    body = {"models": None if models is None else list(models), "field": field}
    return _start(f"{COLLECTIONS}/{check_collection_name(name)}/comparisons", body)


def index_there(name: str, folder: str = "", *, source: str | None = None, prune: bool = False) -> Steps[Job]:
    """Start to index a folder on the server's machine, which the server must be configured to read.

    Args:
        folder: inside one of the server's folders; "": all of it.
        source: name of the server's folder; None: its only one.
        prune: delete items of this folder whose file was removed. Items of a subfolder that is empty, a link, or
            unreadable are kept, and the job's result counts them as `kept`.

    Raises:
        CollectionNotFound: the collection does not exist.
        FingerprintMismatch: the encoder that the collection is bound to is unavailable.
        InvalidRequest: if there is no such folder, or the server accepts remote clients; use `index_folder` instead.
    """
    path = f"{COLLECTIONS}/{check_collection_name(name)}/index"
    return _start(path, {"folder": folder, "source": source, "prune": prune})


def reembed(name: str, model: str, *, skip_missing: bool = False, writes_stopped: bool = False) -> Steps[Job]:
    """Start to re-embed a collection's files with another model; the server must be able to read them.

    Args:
        skip_missing: leave out items whose file is missing or has changed.
        writes_stopped: nothing writes to the collection until the job is done; required over Milvus.

    Raises:
        CollectionNotFound: the collection does not exist.
        UnknownModel: the server does not have the model.
        InvalidRequest: the collection cannot be re-embedded with it.
    """
    path = f"{COLLECTIONS}/{check_collection_name(name)}/reembed"
    return _start(path, {"model": model, "skip_missing": skip_missing, "writes_stopped": writes_stopped})


def abandon_reembed(name: str) -> Steps[None]:
    """Delete the copies that failed re-embeddings left behind, if there are any.

    Raises:
        CollectionNotFound: the collection does not exist.
        InvalidRequest: a collection is being re-embedded.
    """
    return perform(Call("DELETE", f"{COLLECTIONS}/{check_collection_name(name)}/reembed", lambda answer: None))


def backup(*, keep: int | None = None) -> Steps[Job]:
    """Start a backup of the whole store to the destination that the server is configured with.

    Args:
        keep: the number of backups to keep, at least 1; older ones are removed afterwards. None: all.

    Raises:
        InvalidRequest: the server makes no backups, or `keep` is invalid.
    """
    return _start("/api/v1/store/backups", params={} if keep is None else {"keep": str(keep)})


def get(id: str) -> Steps[Job]:
    """Return the current state of a job.

    Raises:
        JobNotFound: if no job has that id, or it ended long ago.
    """
    return perform(Call("GET", _path(id), lambda answer: read_job(answer.json())))


def list_jobs(limit: int = 100) -> Steps[list[Job]]:
    """Return the latest jobs, newest first, without their results."""
    params = {"limit": str(limit)}
    return perform(Call("GET", ROOT, lambda answer: [read_job(one) for one in answer.json()["jobs"]], params=params))


def cancel(id: str) -> Steps[Job]:
    """Cancel a job; a running job stops at its next step, a finished job is not changed."""
    return perform(Call("DELETE", _path(id), lambda answer: read_job(answer.json())))


def wait(
    id: str, *, timeout: float | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> Steps[Job]:
    """Wait for a job and return it when it is done; survives a restart of the server.

    Args:
        timeout: maximum seconds to wait; None: no limit.
        progress: called with (done, total) after each request.

    Raises:
        NNCLRHubError: why it failed, or that it was cancelled.
        DeadlineExceeded: if it is not done in time; the job continues.
    """
    end = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_PAUSE_S
    while True:
        job = yield from perform(Call("GET", _path(id), lambda answer: read_job(answer.json()), patience=120.0))
        progress(job.done, job.total)
        if job.error is not None:
            raise job.error
        if job.state == "cancelled":
            raise ServiceError(f"Job {id} ({job.kind}) was cancelled after {job.done} of {job.total}.")
        if job.has_ended:
            return job
        if end is not None and time.monotonic() + pause > end:
            raise DeadlineExceeded(f"Job {id} ({job.kind}) is not done after {timeout:g} s and continues; wait again.")
        yield Pause(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def read_job(body: dict[str, Any]) -> Job:
    """Return the job in a response."""
    error = body["error"] and make_error(body["error"]["code"], body["error"]["detail"])
    about = {name: body[name] for name in ("id", "kind", "state", "done", "total", "eta_s", "result")}
    return Job(**about, error=error or None)


def _start(path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None) -> Steps[Job]:
    return perform(Call("POST", path, lambda answer: read_job(answer.json()), params or {}, json=body))


def _path(id: str) -> str:
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidRequest(f"{id!r:.100} is not a job id; use the `id` of a Job.")
    return f"{ROOT}/{id}"
