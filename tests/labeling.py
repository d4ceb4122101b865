"""Actions of tests that label items of the collection `photos`."""

from collections.abc import Sequence
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


def ids_of(served: Any, name: str, number: int) -> list[str]:
    """Return the ids of the first items with a label."""
    items = served.bench.collection("photos").scroll(limit=60).items
    return [item.id for item in items if item.metadata["label"] == name][:number]


def show_all(page: Any) -> None:
    """Show all 60 images in the labeler."""
    page.wait_for_selector("#labeler .tile")
    page.locator("#labeler button", has_text="Show more images").click()
    page.wait_for_function("() => document.querySelectorAll('#labeler .tile').length === 60")


def label_ids(page: Any, name: str, ids: Sequence[str]) -> None:
    """Click images in the labeler."""
    page.fill("#labeler-label", name)
    for id in ids:
        page.locator(f'#labeler .tile[data-id="{id}"] .image').click()


def label(page: Any, served: Any, name: str, number: int) -> None:
    """Label the first images of a class with its name."""
    label_ids(page, name, ids_of(served, name, number))
