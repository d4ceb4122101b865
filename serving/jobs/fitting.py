"""The job that fits a probe."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from nnclr_hub.workbench.privacy import without_paths
from nnclr_hub.workbench.probe_fitting import FitOptions
from nnclr_hub.workbench.probe_sources import Example, fit_on_collection, fit_on_examples
from nnclr_hub.workbench.probes import KeptProbe, keep_probe
from nnclr_hub.workbench.staged_images import staged_images

from ..payloads import decode_text, decode_vector
from .outcome import Outcome
from .task import UPLOAD, Task

NAMED_MOST = 100
Errors = list[dict[str, Any]]


def fit(task: Task) -> Outcome:
    """Fits on a collection, on the items that came with the job, or on class folders that wait under a ticket."""
    params = task.params
    options = FitOptions(**params["options"])
    if params["collection"] is not None:
        collection = task.bench.collection(params["collection"])
        field, where = params["field"], params["where"]
        kept = fit_on_collection(collection, params["name"], field, where, options, progress=task.progress)
        errors: Errors = []
    elif params.get(UPLOAD) is not None:
        kept, errors = _of_folders(task, options)
    else:
        kept, errors = _of_items(task, options)
    task.check()
    return Outcome(_told(kept, errors), partial(keep_probe, kept=kept, replace=params["replace"]))


def _of_items(task: Task, options: FitOptions) -> tuple[KeptProbe, Errors]:
    examples = [_example(one, i) for i, one in enumerate(json.loads(task.input))]
    embedder = task.bench.models.get(task.params["source"]) if task.params["source"] else None
    kept, broken = fit_on_examples(examples, task.params["name"], embedder, options, progress=task.progress)
    return kept, [{"index": index, "detail": reason} for index, reason in broken]


def _of_folders(task: Task, options: FitOptions) -> tuple[KeptProbe, Errors]:
    params = task.params
    with staged_images(params[UPLOAD], params["max_bytes"]) as (pictures, left_out):
        pictures.sort(key=lambda one: one.name)  # a browser sends them in any order, and splits go by the order
        examples = [Example(picture.label, image=picture.read) for picture in pictures]
        embedder = task.bench.models.get(params["source"])
        kept, broken = fit_on_examples(examples, params["name"], embedder, options, progress=task.progress)
        told = [*left_out, *((pictures[index].name, reason) for index, reason in broken)]
    return kept, [{"name": name, "detail": without_paths(reason)} for name, reason in told]


def _example(item: dict[str, Any], index: int) -> Example:
    vector, image = item.get("vector"), item.get("image")
    return Example(
        item["label"],
        None if vector is None else decode_vector(vector, f"vector of item {index}"),
        None if image is None else decode_text(image, f"image of item {index}"),
    )


def _told(kept: KeptProbe, errors: Errors) -> dict[str, Any]:
    about = {name: kept.about[name] for name in ("rows", "left_out", "held_out", "scores", "none", "per_class")}
    named = errors[:NAMED_MOST]
    return {"probe": kept.name, "classes": len(kept.probe.classes), "l2": kept.probe.l2, **about, "errors": named}
