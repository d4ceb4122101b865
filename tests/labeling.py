"""Fit a probe without a server."""

from typing import Any

from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.probes import FitOptions, KeptProbe, fit_on_collection, keep_probe


def fit_probe(
    bench: Workbench,
    name: str,
    collection: str,
    field: str,
    *,
    where: Any = None,
    options: FitOptions = FitOptions(),  # noqa: B008
    replace: bool = False,
    progress: Any = lambda done, total: None,
) -> KeptProbe:
    """Fit a probe on the labels in a metadata field and keep it, as the job of a server does."""
    kept = fit_on_collection(bench.collection(collection), field, where, options, progress=progress).kept(name)
    keep_probe(bench.store.records, kept, replace=replace)
    return kept
