"""Fit a probe without a server."""

from typing import Any

from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.probe_fitting import FitOptions
from nnclr_hub.workbench.probe_sources import fit_on_collection
from nnclr_hub.workbench.probes import KeptProbe, keep_probe


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
    kept = fit_on_collection(bench.collection(collection), name, field, where, options, progress=progress)
    keep_probe(bench.store.records, kept, replace=replace)
    return kept
