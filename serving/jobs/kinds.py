"""The kinds of jobs: the tasks of the registry, and those whose requests the routes still make by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.errors import CollectionNotFound
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.duplicates import find_duplicates
from nnclr_hub.workbench.file_import import MAX_NAMED, ImportReport, ImportRequest, import_file
from nnclr_hub.workbench.folder_changes import FolderChanges
from nnclr_hub.workbench.import_format import format_of_file
from nnclr_hub.workbench.inspection.findings import inspect_collection, write_fields
from nnclr_hub.workbench.inspections import keep_inspection
from nnclr_hub.workbench.portion import portion
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.probes import FitOptions, fit_on_collection, fit_on_examples, keep_probe
from nnclr_hub.workbench.reembedding import abandon, reembed
from nnclr_hub.workbench.source_folders import SourceFolders
from nnclr_hub.workbench.staging import staged
from nnclr_hub.workbench.tasks import Cancelled, Task, TaskContext, all_tasks

from ..request_bodies import decode_text

MAX_IDS = 1000  # ids of a group of duplicates in a result


class Values(dict[str, Any]):
    """The request or the result of a task, as the JSON that it is."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Return the values."""
        return cls(body)

    def as_json(self) -> dict[str, Any]:
        """Return the values."""
        return dict(self)


def _import(bench: Workbench, values: Values, context: TaskContext) -> ImportReport:
    """Import an uploaded file. Unreadable images and invalid rows are reported."""
    assert context.folder is not None
    file = staged(context.folder.name)
    format = values.get("format") or format_of_file(file.name).name
    limit = {name: values[name] for name in ("max_bytes",) if name in values}
    return import_file(bench, ImportRequest(values["collection"], str(file.path), format, file.name, **limit), context)


def _index(bench: Workbench, values: Values, context: TaskContext) -> Values:
    """Make a collection match a folder below one of the server's source folders.

    The state keeps the counts of the first attempt, so that a restarted job reports what it did in total.
    """
    folder = SourceFolders(bench.source_folders or ()).again(values["root"], values["folder"]).path
    name, prune = values["collection"], values["prune"]
    left: dict[str, int] = {}

    def begin(changes: FolderChanges) -> None:
        left.update(changes.counts)
        if not context.state:
            context.save(left)

    indexed = bench.index_folder(name, folder, prune=prune, begin=begin, progress=context.progress)
    before = {what: max(0, context.state[what] - number) for what, number in left.items()}
    unchanged = max(0, indexed.unchanged - before["new"] - before["changed"])
    report = ImportReport(name, indexed.added + before["new"], indexed.updated + before["changed"], unchanged)
    for path, reason in indexed.broken:
        report.refuse(Path(path).relative_to(folder).as_posix(), reason)
    report.left_out.update(indexed.left_out)
    removed = indexed.removed + before["gone"] if prune else 0
    return Values({**report.as_json(), "removed": removed, "kept": indexed.kept})


def _duplicates(bench: Workbench, values: Values, context: TaskContext) -> Values:
    """Find items with equal pixels, or with similar vectors if there is a threshold."""
    collection = bench.collection(values["collection"])
    options = {name: values[name] for name in ("where", "exact", "limit")}
    found = find_duplicates(collection, values["threshold"], **options, most_ids=MAX_IDS, progress=context.progress)
    return Values({"collection": collection.name, **found})


def _inspect(bench: Workbench, values: Values, context: TaskContext) -> Values:
    collection = bench.collection(values["collection"])
    share = 0.9 if values["write_fields"] else 1  # of the time; the fields take the rest
    finding = portion(context.progress, 0, share)
    kept = inspect_collection(collection, values["field"], label_next=values["label_next"], progress=finding)
    if values["write_fields"]:
        update = partial(bench.update_each, collection.name)
        kept = write_fields(collection, kept, update, progress=portion(context.progress, share, 1))
    context.at_end(partial(keep_inspection, kept=kept))
    return Values({"collection": collection.name, **kept.about})


def _compare(bench: Workbench, values: Values, context: TaskContext) -> Values:
    """Compare encoders on a collection; names of hand-crafted features are not models."""
    from nnclr_hub.workbench.inspection.comparison import compare_on_collection

    collection = bench.collection(values["collection"])
    pairs = zip(values["models"], values["source"], strict=True)
    sources = [(name, FLOORS[name] if source is None else bench.models.get(source)) for name, source in pairs]
    found = compare_on_collection(collection, sources, values["field"], progress=context.progress)
    return Values({"collection": collection.name, "field": values["field"], **found.as_json()})


def _reembed(bench: Workbench, values: Values, context: TaskContext) -> Values:
    try:
        context.raise_if_cancelled()
        done = reembed(
            bench,
            values["collection"],
            values["source"],
            skip_missing=values["skip_missing"],
            writes_stopped=values["writes_stopped"],
            folders=bench.source_folders,
            progress=context.progress,
        )
    except Cancelled:
        with suppress(CollectionNotFound):  # the collection is deleted
            abandon(bench, values["collection"])
        raise
    left_out = [{"item": item, "reason": without_paths(reason)} for item, reason in done.left_out]
    return Values({**asdict(done), "left_out": left_out[:MAX_NAMED], "left_out_count": len(left_out)})


def _fit_probe(bench: Workbench, values: Values, context: TaskContext) -> Values:
    """Fit on a collection, or on the items submitted with the job."""
    options = FitOptions(**values["options"])
    if values["collection"] is not None:
        collection = bench.collection(values["collection"])
        fitted = fit_on_collection(collection, values["field"], values["where"], options, progress=context.progress)
    else:
        embedder = bench.models.get(values["source"]) if values["source"] else None
        examples = values["examples"]
        fitted = fit_on_examples(examples, embedder, options, decode=decode_text, progress=context.progress)
    context.raise_if_cancelled()
    kept = fitted.kept(values["name"])
    shown = {name: kept.about[name] for name in ("rows", "left_out", "held_out", "scores", "none", "per_class")}
    context.at_end(partial(keep_probe, kept=kept, replace=values["replace"]))
    errors = [{"index": index, "detail": reason} for index, reason in fitted.broken[:MAX_NAMED]]
    probe = {"probe": kept.name, "classes": len(kept.probe.classes), "l2": kept.probe.l2}
    return Values({**probe, **shown, "errors": errors})


_BY_HAND: dict[str, Callable[[Any, Any, TaskContext], Any]] = {
    "probe_fit": _fit_probe,
    "reembed": _reembed,
    "duplicates": _duplicates,
    "add": _import,
    "import": _import,
    "index": _index,
    "inspection": _inspect,
    "comparison": _compare,
}


def all_kinds() -> dict[str, Task]:
    """Return the task of each kind of job."""
    by_hand = {name: Task(name, Values, "", False, run) for name, run in _BY_HAND.items()}  # type: ignore[arg-type]
    return {**all_tasks(), **by_hand}
