"""The kinds of jobs, and what each does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.errors import CollectionNotFound
from nnclr_hub.store.records import Records
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.duplicates import find_duplicates
from nnclr_hub.workbench.file_import import MAX_NAMED
from nnclr_hub.workbench.inspection.findings import inspect_collection, write_fields
from nnclr_hub.workbench.inspections import keep_inspection
from nnclr_hub.workbench.portion import portion
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.probes import FitOptions, fit_on_collection, fit_on_examples, keep_probe
from nnclr_hub.workbench.reembedding import abandon, reembed
from nnclr_hub.workbench.staging import renew, unstage
from nnclr_hub.workbench.tasks import Task, TaskContext, all_tasks

from ..request_bodies import decode_text
from .add_images import add, import_vectors, index
from .context import UPLOAD, JobContext, Outcome

MAX_IDS = 1000  # of a group of duplicates, in a result


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


def _duplicates(context: JobContext) -> Outcome:
    """Find items with equal pixels, or with similar vectors if there is a threshold."""
    collection, params = context.bench.collection(context.params["collection"]), context.params
    options = {name: params[name] for name in ("where", "exact", "limit")}
    found = find_duplicates(collection, params["threshold"], **options, most_ids=MAX_IDS, progress=context.progress)
    return Outcome({"collection": collection.name, **found})


def _inspect(context: JobContext) -> Outcome:
    params, progress = context.params, context.progress
    collection = context.bench.collection(params["collection"])
    share = 0.9 if params["write_fields"] else 1  # of the time; the fields take the rest
    finding = portion(progress, 0, share)
    kept = inspect_collection(collection, params["field"], label_next=params["label_next"], progress=finding)
    if params["write_fields"]:
        update = partial(context.bench.update_each, collection.name)
        kept = write_fields(collection, kept, update, progress=portion(progress, share, 1))
    return Outcome({"collection": collection.name, **kept.about}, partial(keep_inspection, kept=kept))


def _compare(context: JobContext) -> Outcome:
    """Compare encoders on a collection; names of hand-crafted features are not models."""
    from nnclr_hub.workbench.inspection.comparison import compare_on_collection

    collection, params = context.bench.collection(context.params["collection"]), context.params
    pairs = zip(params["models"], params["source"], strict=True)
    sources = [(name, FLOORS[name] if source is None else context.bench.models.get(source)) for name, source in pairs]
    found = compare_on_collection(collection, sources, params["field"], progress=context.progress)
    return Outcome({"collection": collection.name, "field": params["field"], **found.as_json()})


def _reembed(context: JobContext) -> Outcome:
    done = reembed(
        context.bench,
        context.params["collection"],
        context.params["source"],
        skip_missing=context.params["skip_missing"],
        writes_stopped=context.params["writes_stopped"],
        folders=context.source_folders,
        progress=context.progress,
    )
    left_out = [{"item": item, "reason": without_paths(reason)} for item, reason in done.left_out]
    return Outcome({**asdict(done), "left_out": left_out[:MAX_NAMED], "left_out_count": len(left_out)})


def _abandon_reembedding(bench: Workbench, params: Mapping[str, Any]) -> None:
    with suppress(CollectionNotFound):  # the collection is deleted
        abandon(bench, params["collection"])


# ---- fitting a probe


def _fit_probe(context: JobContext) -> Outcome:
    """Fit on a collection, or on the items submitted with the job."""
    params, progress = context.params, context.progress
    options = FitOptions(**params["options"])
    if params["collection"] is not None:
        collection = context.bench.collection(params["collection"])
        fitted = fit_on_collection(collection, params["field"], params["where"], options, progress=progress)
    else:
        embedder = context.bench.models.get(params["source"]) if params["source"] else None
        examples = json.loads(context.input)
        fitted = fit_on_examples(examples, embedder, options, decode=decode_text, progress=progress)
    context.check()
    kept = fitted.kept(params["name"])
    about = {name: kept.about[name] for name in ("rows", "left_out", "held_out", "scores", "none", "per_class")}
    result = {"probe": kept.name, "classes": len(kept.probe.classes), "l2": kept.probe.l2, **about}
    result["errors"] = [{"index": index, "detail": reason} for index, reason in fitted.broken[:MAX_NAMED]]
    return Outcome(result, partial(keep_probe, kept=kept, replace=params["replace"]))


# ---- uploaded files


def _renew_upload(params: Mapping[str, Any]) -> None:
    renew(params[UPLOAD])


def _delete_upload(params: Mapping[str, Any]) -> None:
    unstage(params[UPLOAD])


def _kind_of(task: Task) -> Kind:
    """Return the kind of job that runs a task."""

    def run(context: JobContext) -> Outcome:
        seen = TaskContext(context.progress, context.check, state=context.notes, save=context.keep)
        result = task.run(context.bench, task.request.from_json(context.params), seen)

        def commit(records: Records) -> None:
            for write in seen.writes:
                write(records)

        return Outcome(result.as_json(), commit)

    return Kind(run)


KINDS: dict[str, Kind] = {
    **{name: _kind_of(task) for name, task in all_tasks().items()},
    "add": Kind(add, renew=_renew_upload, forget=_delete_upload),
    "import": Kind(import_vectors, renew=_renew_upload, forget=_delete_upload),
    "index": Kind(index),
    "probe_fit": Kind(_fit_probe),
    "duplicates": Kind(_duplicates),
    "inspection": Kind(_inspect),
    "comparison": Kind(_compare),
    "reembed": Kind(_reembed, _abandon_reembedding),
}
