"""The job that fits a probe."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from nnclr_hub.workbench.probe_fitting import FitOptions
from nnclr_hub.workbench.probe_sources import Example, fit_on_collection, fit_on_examples
from nnclr_hub.workbench.probes import KeptProbe, keep_probe

from ..payloads import decode_text, decode_vector
from .outcome import Outcome
from .task import Task

NAMED_MOST = 100


def fit(task: Task) -> Outcome:
    """Fits on a collection, or on the items that came with the job."""
    params = task.params
    options = FitOptions(**params["options"])
    broken: list[tuple[int, str]] = []
    if params["collection"] is not None:
        collection = task.bench.collection(params["collection"])
        kept = fit_on_collection(
            collection, params["name"], params["field"], params["where"], options, progress=task.progress
        )
    else:
        examples = [_example(one, i) for i, one in enumerate(json.loads(task.input))]
        embedder = task.bench.models.get(params["source"]) if params["source"] else None
        kept, broken = fit_on_examples(examples, params["name"], embedder, options, progress=task.progress)
    task.check()
    return Outcome(_told(kept, broken), partial(keep_probe, kept=kept, replace=params["replace"]))


def _example(item: dict[str, Any], index: int) -> Example:
    vector, image = item.get("vector"), item.get("image")
    return Example(
        item["label"],
        None if vector is None else decode_vector(vector, f"vector of item {index}"),
        None if image is None else decode_text(image, f"image of item {index}"),
    )


def _told(kept: KeptProbe, broken: list[tuple[int, str]]) -> dict[str, Any]:
    about = {name: kept.about[name] for name in ("rows", "left_out", "held_out", "scores", "none", "per_class")}
    errors = [{"index": index, "detail": reason} for index, reason in broken[:NAMED_MOST]]
    return {"probe": kept.name, "classes": len(kept.probe.classes), "l2": kept.probe.l2, **about, "errors": errors}
