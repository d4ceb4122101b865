"""Which encoder is best on these images? Scores with few labels, with paired intervals, and scores without labels.

With labels, every image is predicted by classifiers that have not seen it, so all sources answer for the same images
and their differences are tested in pairs. Without labels:

- RankMe (Garrido et al., ICML 2023): the effective number of directions that the vectors use.
- Uniformity (Wang and Isola, ICML 2020): how evenly they cover the sphere; lower is more even.
- Agreement: the share of 10 neighbors that a source has in common with the other sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.encoder.features import FeatureSource, extract_features, unit_rows
from nnclr_hub.encoder.image_folder import list_images
from nnclr_hub.encoder.labeled import TABLE
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.inspect.neighbors import nearest
from nnclr_hub.probe.cross_validation import out_of_fold
from nnclr_hub.probe.uncertainty import Difference, confidence_interval, paired_difference
from nnclr_hub.workbench.inspection.subject import Report, folder_labels, table_labels

if TYPE_CHECKING:
    from rich.table import Table

NEIGHBORS = 10
PAIRS = 20_000  # for uniformity
LEAST_LABELS = 20


@dataclass(frozen=True)
class EncoderScore:
    """The scores of one source.

    linear, knn: (accuracy, low, high) of cross-validation, with a 95% interval; None without labels.
    against_first: linear accuracy minus that of the first source, in pairs; None for the first and without labels.
    rankme: 1 to D. uniformity: at most 0. agreement: 0 to 1, None for a single source.
    """

    source: str
    linear: tuple[float, float, float] | None
    knn: tuple[float, float, float] | None
    against_first: Difference | None
    rankme: float
    uniformity: float
    agreement: float | None


@dataclass(frozen=True)
class EncoderComparison:
    """The scores of all sources, and one sentence on what they show."""

    scores: tuple[EncoderScore, ...]
    labels: int
    images: int
    conclusion: str

    def as_json(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        return asdict(self)

    def table(self) -> Table:
        """Return a table for the terminal."""
        from rich.table import Table

        table = Table("source", "linear", "k-NN", "against the first", "RankMe", "uniformity", "agreement", box=None)
        for one in self.scores:
            difference = one.against_first
            against = (
                ""
                if difference is None
                else f"{difference.mean:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"
            )
            agreement = "" if one.agreement is None else f"{one.agreement:.2f}"
            numbers = (f"{one.rankme:.1f}", f"{one.uniformity:.2f}", agreement)
            table.add_row(one.source, _shown(one.linear), _shown(one.knn), against, *numbers)
        return table


def compare_sources(
    folder: Path,
    sources: Sequence[tuple[str, FeatureSource]],
    labels: Path | None = None,
    root: Path | None = None,
    *,
    report: Report = lambda title: lambda done, total: None,
) -> EncoderComparison:
    """Compare sources of vectors on the images of a folder.

    Args:
        sources: (name, source), at least one.
        labels, root: see `folder_subject`.

    Raises:
        NoImages: there is no image.
        InvalidRequest: the table lists no image of the folder.
    """
    paths = list_images(folder)
    table = labels or (folder / TABLE if (folder / TABLE).is_file() else None)
    named = table_labels(table, paths, folder, root) if table else folder_labels(paths, folder)
    extracted = [extract_features(source, paths, progress=report(name)) for name, source in sources]
    readable = np.array([i for i in range(len(paths)) if not any(i in one.broken for one in extracted)])
    if len(readable) <= NEIGHBORS:
        raise InvalidRequest(f"A comparison needs more than {NEIGHBORS} readable images, got {len(readable)}.")
    vectors = [unit_rows(np.asarray(one.raw)[readable]).astype(np.float32) for one in extracted]
    rows = np.array([k for k, i in enumerate(readable) if named[i]], np.int64)
    classes, numbers = np.unique([str(named[readable[k]]) for k in rows], return_inverse=True)
    usable = len(rows) >= LEAST_LABELS and len(classes) >= 2
    right = {
        kind: [out_of_fold(one[rows], numbers.astype(np.int64), classifier=kind).right for one in vectors]
        if usable
        else None
        for kind in ("linear", "knn")
    }
    places = [nearest(one, NEIGHBORS)[1] for one in vectors]
    scores = []
    for k, (name, _) in enumerate(sources):
        linear, knn = right["linear"], right["knn"]
        scores.append(
            EncoderScore(
                name,
                _interval(linear[k]) if linear else None,
                _interval(knn[k]) if knn else None,
                paired_difference(linear[k], linear[0]) if linear and k else None,
                rankme(vectors[k]),
                uniformity(vectors[k]),
                _agreement(places, k),
            )
        )
    return EncoderComparison(tuple(scores), len(rows) if usable else 0, len(readable), _conclusion(scores, len(rows)))


def rankme(vectors: np.ndarray) -> float:
    """Return the exponential of the entropy of the normalized singular values, 1 to D."""
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(vectors.T.astype(np.float64) @ vectors), 0))
    share = values / values.sum() + 1e-7
    return float(np.exp(-(share * np.log(share)).sum()))


def uniformity(vectors: np.ndarray) -> float:
    """Return log of the mean of exp(-2 d^2) over random pairs of unit rows; -4 d for a perfect sphere, 0 collapsed."""
    random = np.random.default_rng(0)
    first = random.integers(0, len(vectors), PAIRS)
    second = (first + random.integers(1, len(vectors), PAIRS)) % len(vectors)
    squared = 2 - 2 * (vectors[first] * vectors[second]).sum(axis=1)
    return float(np.log(np.exp(-2 * squared).mean()))


def _agreement(places: Sequence[np.ndarray], k: int) -> float | None:
    others = [one for i, one in enumerate(places) if i != k]
    if not others:
        return None
    shared = [(places[k][:, :, None] == one[:, None, :]).any(axis=2).mean() for one in others]
    return float(np.mean(shared))


def _interval(right: np.ndarray) -> tuple[float, float, float]:
    return (float(right.mean()), *confidence_interval(right))


def _conclusion(scores: Sequence[EncoderScore], labels: int) -> str:
    if scores[0].linear is None:
        return (
            f"{labels} labels are too few to compare accuracies; scores without labels show whether vectors "
            "collapsed, not which encoder separates your classes."
        )
    ranked = sorted(scores, key=lambda one: -(one.linear or (0.0,))[0])
    best = ranked[0]
    if len(scores) == 1:
        return f"With {labels} labels, {best.source} reaches {_shown(best.linear)}."
    differences = [one.against_first for one in scores[1:] if one.against_first is not None]
    clear = [one for one in differences if one.low > 0 or one.high < 0]
    if len(clear) == len(differences):
        return (
            f"With {labels} labels, {best.source} has the highest accuracy, and every difference to "
            f"{scores[0].source} is clear."
        )
    return (
        f"With {labels} labels, {best.source} has the highest accuracy, but {len(differences) - len(clear)} of "
        f"{len(differences)} differences to {scores[0].source} may be chance; label more images to decide."
    )


def _shown(value: tuple[float, float, float] | None) -> str:
    return "" if value is None else f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"
