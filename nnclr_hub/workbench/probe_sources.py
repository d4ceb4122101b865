"""What a probe is fitted on: the labeled items of a collection, or examples that somebody gives."""

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
class Example:
    """A labeled vector or image.

    label: one, or a list of them; "" for none.
    vector: (D,) float32, of any length; or None for an image.
    image: bytes of an image, or what reads them when its turn comes and may raise ImageError.
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
    """A probe on a collection's vectors and the labels in a field of its metadata; it is not kept yet.

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
    examples: Sequence[Example],
    name: str,
    embedder: Embedder | None,
    options: FitOptions,
    *,
    progress: Progress = lambda done, total: None,
) -> tuple[KeptProbe, list[tuple[int, str]]]:
    """A probe on examples, not kept yet, and the places of images that could not be read, with the reason.

    Args:
        embedder: for images; what the vectors are of. None: nobody knows.

    Raises:
        InvalidRequest: vectors of several lengths, images without an embedder, fewer than two classes.
    """
    reading, fitting = _halves(progress)
    vectors, broken = _embedded(examples, embedder, reading)
    places = [i for i, vector in enumerate(vectors) if vector is not None]
    rows = [one for one in vectors if one is not None]
    labels, several = [], any(isinstance(one.label, list | tuple) for one in examples)
    taken = []
    for i, row in zip(places, rows, strict=True):
        label = label_of(examples[i].label, f"The label of item {i}")
        if label is not None:
            labels.append(label)
            taken.append(row)
    left_out = {"unreadable": len(broken), "no label": len(rows) - len(taken)}
    matrix = unit_rows(np.stack(taken)) if taken else np.zeros((0, 1), np.float32)
    read = LabeledVectors(matrix, labels, several, {reason: n for reason, n in left_out.items() if n})
    refuse_few(read, "What was given", "give some of another label too.")
    about: dict[str, Any] = {"items": len(examples)}
    fingerprint, model = (embedder.fingerprint, embedder.name) if embedder else ("", "")
    fitted = fit_and_score(read, options, fingerprint=fingerprint, model=model, progress=fitting)
    return KeptProbe(name, fitted.probe, about_fit(fitted, about, read.left_out)), broken


def _embedded(
    examples: Sequence[Example], embedder: Embedder | None, progress: Progress
) -> tuple[list[np.ndarray | None], list[tuple[int, str]]]:
    """A vector each, None where there is none; and why."""
    found: list[np.ndarray | None] = [one.vector for one in examples]
    broken: list[tuple[int, str]] = []
    pictures = {i: one.image for i, one in enumerate(examples) if one.image is not None}
    places = list(pictures)
    if places and embedder is None:
        raise InvalidRequest("Images need a model that makes vectors of them: name one.")
    for start in range(0, len(places), BATCH):
        assert embedder is not None
        read = [(i, _bytes_of(pictures[i])) for i in places[start : start + BATCH]]
        embedded = iter(embedder.embed_each([data for _, data in read if isinstance(data, bytes)]))
        for i, data in read:
            result = next(embedded) if isinstance(data, bytes) else data
            if isinstance(result, ImageError):
                broken.append((i, str(result)))
            else:
                found[i] = result
        progress(min(start + BATCH, len(places)), len(places))
    lengths = {len(one) for one in found if one is not None}
    wanted = embedder.embed_dim if embedder else next(iter(lengths), 0)
    if lengths - {wanted}:
        raise InvalidRequest(
            f"The vectors have {', '.join(map(str, sorted(lengths)))} numbers: all must have {wanted}"
            + (f", as those of {embedder.name}." if embedder else ".")
        )
    return found, broken


def _bytes_of(image: bytes | Callable[[], bytes]) -> bytes | ImageError:
    try:
        return image if isinstance(image, bytes) else image()
    except ImageError as error:
        return error


def _halves(progress: Progress) -> tuple[Progress, Progress]:
    """Two parts of the work as one: reading is the first half, fitting the second, counted in what is read."""
    rows = 1

    def reading(done: int, total: int) -> None:
        nonlocal rows
        rows = max(1, total)
        progress(done, 2 * rows)

    def fitting(done: int, total: int) -> None:
        progress(rows + rows * done // total, 2 * rows)

    return reading, fitting
