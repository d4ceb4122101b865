"""Work that a server does in the background: how far it is, waiting for its end, breaking it off."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nnclr_hub.client.answers import make_error
from nnclr_hub.client.steps import Call, Pause, Steps, ask
from nnclr_hub.errors import DeadlineExceeded, InvalidRequest, NNCLRHubError, ServiceError
from nnclr_hub.store.base import Where
from nnclr_hub.store.checks import check_name

ROOT = "/api/v1/jobs"
COLLECTIONS = "/api/v1/collections"
ENDED = ("done", "failed", "cancelled")
FIRST_LOOK_S, LAST_LOOK_S = 0.1, 2.0
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Job:
    """A job at one moment.

    state: queued, running, done, failed or cancelled.
    done, total: how far it is; total is 0 until it is known.
    eta_s: seconds that are left, if that can be told.
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
    """Begins to compact a collection; wait for the job with `wait`, as for those below.

    Raises:
        CollectionNotFound: names those that exist.
    """
    return _begin(ROOT, {"kind": "compact", "collection": check_name(name, "Collection name")})


def duplicates(
    name: str, threshold: float | None = None, *, where: Where | None = None, exact: bool = False, limit: int = 1000
) -> Steps[Job]:
    """Begins to look for items that are there twice; the job's result has them in groups.

    Args:
        threshold: the least score of a pair; None: images with the same pixels.
        where, exact: only items that pass, all compared with all; both go with a threshold.
        limit: groups to give, the largest first.

    Raises:
        CollectionNotFound, InvalidFilter, InvalidRequest.
    """
    asked = {"threshold": threshold, "where": where, "exact": exact, "limit": limit}
    return _begin(f"{COLLECTIONS}/{check_name(name, 'Collection name')}/duplicates", asked)


def index_there(name: str, folder: str = "", *, source: str | None = None, prune: bool = False) -> Steps[Job]:
    """Begins to index a folder on the server's machine; the server must be let read it.

    Args:
        folder: below one of the server's folders; "": all of that.
        source: name of the server's folder; None: its only one.
        prune: delete items of this folder whose file is gone. Those of a subfolder that is empty, a link, or cannot be
            listed may be there unseen: they stay, and the job's result counts them as `kept`.

    Raises:
        CollectionNotFound, FingerprintMismatch.
        InvalidRequest: no such folder, or the server can be reached from elsewhere; `index_folder` sends images.
    """
    path = f"{COLLECTIONS}/{check_name(name, 'Collection name')}/index"
    return _begin(path, {"folder": folder, "source": source, "prune": prune})


def reembed(name: str, model: str, *, skip_missing: bool = False) -> Steps[Job]:
    """Begins to embed a collection's files anew with another model; the server must be let read them.

    Args:
        skip_missing: leave out items whose file is missing or has changed.

    Raises:
        CollectionNotFound, UnknownModel, InvalidRequest.
    """
    path = f"{COLLECTIONS}/{check_name(name, 'Collection name')}/reembed"
    return _begin(path, {"model": model, "skip_missing": skip_missing})


def get(id: str) -> Steps[Job]:
    """The job as it is now.

    Raises:
        JobNotFound: none has that id, or it ended long ago.
    """
    return ask(Call("GET", _path(id), lambda answer: read_job(answer.json())))


def list_jobs(limit: int = 100) -> Steps[list[Job]]:
    """The newest jobs, the newest first, without their results."""
    params = {"limit": str(limit)}
    return ask(Call("GET", ROOT, lambda answer: [read_job(one) for one in answer.json()["jobs"]], params=params))


def cancel(id: str) -> Steps[Job]:
    """Breaks the job off, at its next step if it runs; one that has ended stays as it is."""
    return ask(Call("DELETE", _path(id), lambda answer: read_job(answer.json())))


def wait(
    id: str, *, timeout: float | None = None, progress: Callable[[int, int], None] = lambda done, total: None
) -> Steps[Job]:
    """The job when it is done; survives a restart of the server.

    Args:
        timeout: seconds to wait at most; None: as long as it takes.
        progress: called with (done, total) after each look.

    Raises:
        NNCLRHubError: why it failed, or that it was cancelled.
        DeadlineExceeded: it is not done in time; it goes on.
    """
    end = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_LOOK_S
    while True:
        job = yield from ask(Call("GET", _path(id), lambda answer: read_job(answer.json()), patience=120.0))
        progress(job.done, job.total)
        if job.error is not None:
            raise job.error
        if job.state == "cancelled":
            raise ServiceError(f"The job {id} ({job.kind}) was cancelled after {job.done} of {job.total}.")
        if job.has_ended:
            return job
        if end is not None and time.monotonic() + pause > end:
            raise DeadlineExceeded(
                f"The job {id} ({job.kind}) is not done after {timeout:g} s: it goes on; wait again."
            )
        yield Pause(pause)
        pause = min(2 * pause, LAST_LOOK_S)


def read_job(body: dict[str, Any]) -> Job:
    """A job as a server tells of it."""
    error = body["error"] and make_error(body["error"]["code"], body["error"]["detail"])
    about = {name: body[name] for name in ("id", "kind", "state", "done", "total", "eta_s", "result")}
    return Job(**about, error=error or None)


def _begin(path: str, asked: Mapping[str, Any]) -> Steps[Job]:
    key = {"Idempotency-Key": uuid.uuid4().hex}  # an answer that is lost makes no second job
    return ask(Call("POST", path, lambda answer: read_job(answer.json()), json=asked, headers=key))


def _path(id: str) -> str:
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidRequest(f"{id!r:.100} is no job's id: take `id` of the Job that started it.")
    return f"{ROOT}/{id}"
