"""The kinds of jobs, and what each does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nnclr_hub.errors import CollectionNotFound, InvalidRequest
from nnclr_hub.store.duplicates import exact_duplicates, near_duplicates
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.reembedding import abandon, reembed
from nnclr_hub.workbench.staging import renew, unstage

from .adding import add, index
from .fitting import fit
from .outcome import Outcome
from .task import UPLOAD, Task

MOST_IDS = 1000  # of a group, or of a report, in a result
NAMED_MOST = 100


@dataclass(frozen=True)
class Kind:
    """A kind of job. Whatever it does can be begun again: it may have been cut short anywhere.

    run: does the work.
    clean: takes away what a cancelled job had begun; gets the workbench and the job's parameters.
    renew: keeps what waits for the job from growing old; gets its parameters.
    forget: takes away what waited for the job, when it has ended in whichever way and that is noted; gets its
        parameters.
    """

    run: Callable[[Task], Outcome]
    clean: Callable[[Workbench, Mapping[str, Any]], None] = lambda bench, params: None
    renew: Callable[[Mapping[str, Any]], None] = lambda params: None
    forget: Callable[[Mapping[str, Any]], None] = lambda params: None


def _duplicates(task: Task) -> Outcome:
    """Items that are there twice: by their pixels, or by their vectors where there is a threshold."""
    collection, params = task.bench.collection(task.params["collection"]), task.params
    if params["threshold"] is None:
        groups = exact_duplicates(collection, progress=task.progress)
    else:
        groups = near_duplicates(
            collection,
            params["threshold"],
            where=params["where"],
            exact=params["exact"],
            progress=task.progress,
        )
    shown = [{"size": len(ids), "ids": list(ids[:MOST_IDS])} for ids in groups[: params["limit"]]]
    surplus = sum(len(ids) - 1 for ids in groups)
    return Outcome({"collection": collection.name, "found": len(groups), "surplus": surplus, "groups": shown})


def _verify(task: Task) -> Outcome:
    collection = task.bench.collection(task.params["collection"])
    report = collection.verify(task.progress)
    told = {name: list(value[:MOST_IDS]) if isinstance(value, tuple) else value for name, value in vars(report).items()}
    return Outcome({"collection": collection.name, "ok": report.ok, **told})


def _compact(task: Task) -> Outcome:
    collection = task.bench.collection(task.params["collection"])
    collection.compact()
    return Outcome({"collection": collection.name, "items": collection.count(), "index": collection.info().index})


def _reembed(task: Task) -> Outcome:
    done = reembed(
        task.bench,
        task.params["collection"],
        task.params["source"],
        skip_missing=task.params["skip_missing"],
        folders=task.source_folders,
        progress=task.progress,
    )
    left_out = [{"item": item, "reason": without_paths(reason)} for item, reason in done.left_out]
    told = {**asdict(done), "left_out": left_out[:NAMED_MOST], "left_out_count": len(left_out)}
    return Outcome(told)


def _abandon(bench: Workbench, params: Mapping[str, Any]) -> None:
    try:
        abandon(bench, params["collection"])
    except (InvalidRequest, CollectionNotFound):
        return  # nothing was built yet, or all is gone


def _renew(params: Mapping[str, Any]) -> None:
    if params.get(UPLOAD) is not None:
        renew(params[UPLOAD])


def _unstage(params: Mapping[str, Any]) -> None:
    if params.get(UPLOAD) is not None:
        unstage(params[UPLOAD])


KINDS: dict[str, Kind] = {
    "add": Kind(add, renew=_renew, forget=_unstage),
    "index": Kind(index),
    "probe_fit": Kind(fit, renew=_renew, forget=_unstage),
    "duplicates": Kind(_duplicates),
    "verify": Kind(_verify),
    "compact": Kind(_compact),
    "reembed": Kind(_reembed, _abandon),
}
