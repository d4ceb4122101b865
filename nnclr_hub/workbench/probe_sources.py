"""What a probe is fitted on: the labeled items of a collection, or examples from the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.encoder.features import unit_rows
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.probe.linear_probe import Label
from nnclr_hub.store.base import Collection, Progress, Where
from nnclr_hub.workbench.labels import LabeledVectors, label_of, labeled_items, refuse_few
from nnclr_hub.workbench.probe_fitting import FitOptions, fit_and_score
from nnclr_hub.workbench.probes import KeptProbe, about_fit

BATCH = 32


@dataclass(frozen=True)
class LabeledExample:
    """A labeled vector or image.

    label: one, or a list of them; "" for none.
    vector: (D,) float32, of any length; or None for an image.
    image: bytes of an image, or a function that reads them when they are needed and may raise ImageError.
    """

    label: Label | Sequence[Label]
    vector: np.ndarray | None = None
    image: bytes | Callable[[], bytes] | None = None


def fit_on_collection(
    collection: Collection,
    name: str,
    field: str,
    where: Where | None,
    options: FitOptions,
    *,
    progress: Progress = lambda done, total: None,
) -> KeptProbe:
    """Fit a probe on a collection's vectors and the labels in a metadata field; it is not stored yet.

    Raises:
        InvalidRequest: see `labeled_items` and `fit_linear_probe`.
    """
    reading, fitting = _halves(progress)
    read = labeled_items(collection, field, where, progress=reading)
    source = {"collection": collection.name, "field": field, "where": where}
    spec = collection.spec
    fitted = fit_and_score(read, options, fingerprint=spec.fingerprint, model=spec.model, progress=fitting)
    return KeptProbe(name, fitted.probe, about_fit(fitted, source, read.left_out))


def fit_on_examples(
    examples: Sequence[LabeledExample],
    name: str,
    embedder: Embedder | None,
    options: FitOptions,
    *,
    progress: Progress = lambda done, total: None,
) -> tuple[KeptProbe, list[tuple[int, str]]]:
    """Fit a probe on examples; return it, not stored yet, and the positions of unreadable images with the reason.

    Args:
        embedder: embeds the images; the vectors come from it. None: their encoder is unknown.

    Raises:
        InvalidRequest: if vectors differ in length, images have no embedder, or there are fewer than two classes.
    """
    reading, fitting = _halves(progress)
    vectors, broken = _embedded(examples, embedder, reading)
    positions = [i for i, vector in enumerate(vectors) if vector is not None]
    rows = [one for one in vectors if one is not None]
    labels, several = [], any(isinstance(one.label, list | tuple) for one in examples)
    taken = []
    for i, row in zip(positions, rows, strict=True):
        label = label_of(examples[i].label, f"The label of item {i}")
        if label is not None:
            labels.append(label)
            taken.append(row)
    left_out = {"unreadable": len(broken), "no label": len(rows) - len(taken)}
    matrix = unit_rows(np.stack(taken)) if taken else np.zeros((0, 1), np.float32)
    read = LabeledVectors(matrix, labels, several, {reason: n for reason, n in left_out.items() if n})
    refuse_few(read, "The set of examples", "add examples of another label.")
    about: dict[str, Any] = {"items": len(examples)}
    fingerprint, model = (embedder.fingerprint, embedder.name) if embedder else ("", "")
    fitted = fit_and_score(read, options, fingerprint=fingerprint, model=model, progress=fitting)
    return KeptProbe(name, fitted.probe, about_fit(fitted, about, read.left_out)), broken


def _embedded(
    examples: Sequence[LabeledExample], embedder: Embedder | None, progress: Progress
) -> tuple[list[np.ndarray | None], list[tuple[int, str]]]:
    """Return the vector of each example, or None; and the reasons."""
    found: list[np.ndarray | None] = [one.vector for one in examples]
    broken: list[tuple[int, str]] = []
    images = {i: one.image for i, one in enumerate(examples) if one.image is not None}
    positions = list(images)
    if positions and embedder is None:
        raise InvalidRequest("Fitting on images needs a model to embed them; name one.")
    for start in range(0, len(positions), BATCH):
        assert embedder is not None
        read = [(i, _bytes_of(images[i])) for i in positions[start : start + BATCH]]
        embedded = iter(embedder.embed_each([data for _, data in read if isinstance(data, bytes)]))
        for i, data in read:
            result = next(embedded) if isinstance(data, bytes) else data
            if isinstance(result, ImageError):
                broken.append((i, str(result)))
            else:
                found[i] = result
        progress(min(start + BATCH, len(positions)), len(positions))
    lengths = {len(one) for one in found if one is not None}
    wanted = embedder.embed_dim if embedder else next(iter(lengths), 0)
    if lengths - {wanted}:
        raise InvalidRequest(
            f"The vectors have lengths {', '.join(map(str, sorted(lengths)))}; all must have length {wanted}"
            + (f", like those of {embedder.name}." if embedder else ".")
        )
    return found, broken


def _bytes_of(image: bytes | Callable[[], bytes]) -> bytes | ImageError:
    try:
        return image if isinstance(image, bytes) else image()
    except ImageError as error:
        return error


def _halves(progress: Progress) -> tuple[Progress, Progress]:
    """Return the progress of reading and of fitting, each of which is half of the whole."""
    rows = 1

    def reading(done: int, total: int) -> None:
        nonlocal rows
        rows = max(1, total)
        progress(done, 2 * rows)

    def fitting(done: int, total: int) -> None:
        progress(rows + rows * done // total, 2 * rows)

    return reading, fitting
