"""The kinds of jobs, and what each does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nnclr_hub.errors import CollectionNotFound
from nnclr_hub.store.records import Records
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.reembedding import abandon
from nnclr_hub.workbench.staging import renew, unstage
from nnclr_hub.workbench.tasks import Task, TaskContext, all_tasks

from .add_images import add, import_vectors, index
from .context import UPLOAD, JobContext, Outcome


@dataclass(frozen=True)
class Kind:
    """A kind of job. All of its functions may run again, because a crash may interrupt them anywhere.

    run: does the work.
    clean: removes the partial results of a cancelled job; takes the workbench and the job's parameters.
    renew: keeps the job's uploaded files from expiring while it waits; takes the parameters.
    forget: deletes the job's uploaded files after its end is on disk; takes the parameters.
    """

    run: Callable[[JobContext], Outcome]
    clean: Callable[[Workbench, Mapping[str, Any]], None] = lambda bench, params: None
    renew: Callable[[Mapping[str, Any]], None] = lambda params: None
    forget: Callable[[Mapping[str, Any]], None] = lambda params: None


def _abandon_reembedding(bench: Workbench, params: Mapping[str, Any]) -> None:
    with suppress(CollectionNotFound):  # the collection is deleted
        abandon(bench, params["collection"])


def _fit_probe(context: JobContext) -> Outcome:
    """Fit on a collection, or on the items submitted with the job."""
    items = None if context.params["collection"] is not None else json.loads(context.input)
    params = {name: value for name, value in context.params.items() if name != "options"}
    request = {**params, **context.params["options"], "items": items}
    return _run(all_tasks()["probe_fit"], request, context)


# ---- uploaded files


def _renew_upload(params: Mapping[str, Any]) -> None:
    renew(params[UPLOAD])


def _delete_upload(params: Mapping[str, Any]) -> None:
    unstage(params[UPLOAD])


def _run(task: Task, request: Mapping[str, Any], context: JobContext) -> Outcome:
    """Run a task in a job."""
    seen = TaskContext(context.progress, context.check, state=context.notes, save=context.keep)
    result = task.run(context.bench, task.request.from_json(request), seen)

    def commit(records: Records) -> None:
        for write in seen.writes:
            write(records)

    return Outcome(result.as_json(), commit)


def _kind_of(task: Task) -> Kind:
    """Return the kind of job that runs a task."""
    return Kind(lambda context: _run(task, context.params, context))


KINDS: dict[str, Kind] = {
    **{name: _kind_of(task) for name, task in all_tasks().items()},
    "add": Kind(add, renew=_renew_upload, forget=_delete_upload),
    "import": Kind(import_vectors, renew=_renew_upload, forget=_delete_upload),
    "index": Kind(index),
    "probe_fit": Kind(_fit_probe),
    "reembed": Kind(_kind_of(all_tasks()["reembed"]).run, _abandon_reembedding),
}
