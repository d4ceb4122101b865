"""Which encoder is best on these images? Scores with few labels, with paired intervals, and scores without labels.

With labels, every image is predicted by classifiers that have not seen it, so all sources answer for the same images
and their differences are tested in pairs. Without labels:

- RankMe (Garrido et al., ICML 2023): the effective number of directions that the vectors use.
- Uniformity (Wang and Isola, ICML 2020): how evenly they cover the sphere; lower is more even.
- Agreement: the share of 10 neighbors that a source has in common with the other sources.

`compare_sources` reads the images of a folder, `compare_on_collection` the thumbnails of a collection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nnclr_hub.encoder.embedder import Embedder
from nnclr_hub.encoder.features import FeatureSource, extract_features
from nnclr_hub.encoder.hand_crafted import FLOORS, HandCrafted
from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.images.decode import decode_image
from nnclr_hub.inspect.neighbors import nearest
from nnclr_hub.probe.cross_validation import FOLDS, out_of_fold
from nnclr_hub.probe.uncertainty import Difference, confidence_interval, paired_difference
from nnclr_hub.store.base import Collection, Progress
from nnclr_hub.store.where import check_key
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench.bench import LocalBench, Report
from nnclr_hub.workbench.inspection.subject import inspected_files
from nnclr_hub.workbench.labels import label_text
from nnclr_hub.workbench.requests import Request, option
from nnclr_hub.workbench.tasks import TaskContext, portion, task

if TYPE_CHECKING:
    from PIL import Image
    from rich.table import Table

NEIGHBORS = 10
PAIRS = 20_000  # for uniformity
LEAST_LABELS = 20
LEVEL = 0.05
MOST_ITEMS = 1000  # that are compared in a collection
BATCH = 64  # thumbnails that are embedded at once
MAX_COMPARED = 8  # encoders of one request
Kind = Literal["linear", "knn"]
CLASSIFIERS: tuple[Kind, ...] = ("linear", "knn")
Interval = tuple[float, float, float]  # accuracy, and its 95% interval


@dataclass(frozen=True)
class EncoderScore:
    """The scores of one source.

    linear, knn: accuracy of cross-validation; None without labels.
    against_first: linear accuracy minus that of the first source, in pairs; None for the first and without labels.
    rankme: 1 to D. uniformity: at most 0. agreement: 0 to 1, None for a single source.
    """

    source: str
    linear: Interval | None
    knn: Interval | None
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

    @classmethod
    def of_json(cls, body: Mapping[str, Any]) -> EncoderComparison:
        """Make it from the result of a job, which has these fields and others."""
        scores = []
        for one in body["scores"]:
            against = one["against_first"]
            scores.append(EncoderScore(**{**one, "against_first": against and Difference(**against)}))
        return cls(tuple(scores), body["labels"], body["images"], body["conclusion"])

    def table(self) -> Table:
        """Return a table for the terminal."""
        from rich.table import Table

        table = Table("source", "linear", "k-NN", "against the first", "RankMe", "uniformity", "agreement", box=None)
        for one in self.scores:
            against = one.against_first
            difference = f"{against.mean:+.3f} ({against.low:+.3f} to {against.high:+.3f})" if against else ""
            agreement = "" if one.agreement is None else f"{one.agreement:.2f}"
            numbers = (f"{one.rankme:.1f}", f"{one.uniformity:.2f}", agreement)
            table.add_row(one.source, _shown(one.linear), _shown(one.knn), difference, *numbers)
        return table


def compare_sources(
    folder: str | Path,
    sources: Sequence[tuple[str, FeatureSource]],
    labels: LabelTable | Path | None = None,
    *,
    report: Report = lambda title: lambda done, total: None,
) -> EncoderComparison:
    """Compare sources of vectors on the images of a folder.

    Args:
        folder, labels: see `inspected_files`.
        sources: (name, source), at least one.
    """
    listed = inspected_files(folder, labels)
    extracted = [extract_features(source, listed.files, progress=report(name)) for name, source in sources]
    readable = [i for i in range(len(listed.files)) if not any(i in one.broken for one in extracted)]
    vectors = [np.asarray(one.raw)[readable] for one in extracted]
    return compare_vectors([name for name, _ in sources], vectors, [listed.labels[i] for i in readable])


@dataclass(frozen=True)
class ComparisonRequest(Request):
    """The encoders to compare, and the labels to compare them by."""

    collection: str = option("name or alias of the collection")
    models: Sequence[str] | None = option(
        "names of models, or hand-crafted features; the others are compared with the first",
        None,
        max_length=MAX_COMPARED,
    )
    field: str = option("metadata key of the label of an item", "label")
    source: Sequence[str | None] | None = option("where a server has each model", None, hidden=True)

    def validate(self) -> None:
        """Raise InvalidFilter for an invalid key, or InvalidRequest."""
        super().validate()
        check_key(self.field)


@task("comparison", ComparisonRequest, path="/collections/{collection}/comparisons")
def compare_encoders(bench: LocalBench, request: ComparisonRequest, context: TaskContext) -> dict[str, Any]:
    """Compare encoders on a collection; names of hand-crafted features are not models."""
    collection = bench.collection(request.collection)
    models = request.models or [bench.default_model, "pixels"]
    sources = [
        (name, FLOORS[name] if name in FLOORS else bench.models.get(source))
        for name, source in zip(models, request.source or models, strict=True)
    ]

    def progress(done: int, total: int) -> None:
        context.begin("Fitting classifiers" if 2 * done > total else "Embedding the images")
        context.progress(done, total)

    found = compare_on_collection(collection, sources, request.field, progress=progress)
    return {"collection": collection.name, "field": request.field, **found.as_json()}


def compare_on_collection(
    collection: Collection,
    sources: Sequence[tuple[str, Embedder | HandCrafted]],
    field: str = "label",
    progress: Progress = lambda done, total: None,
) -> EncoderComparison:
    """Compare sources of vectors on the thumbnails of a collection.

    At most MOST_ITEMS items are compared, sampled from those with a label, or from all if fewer than 20 have one.

    Args:
        sources: (name, source), at least one.
        field: metadata key of the label.
        progress: called with (done, total): first half vectors, second half the classifiers on them.
    """
    labels: dict[str, str | None] = {}
    for items in collection.pages(with_vector=False):
        labels |= {item.id: label_text(item.metadata, field) for item in items}
        progress(0, 0)  # which may end a job
    labeled = [id for id, label in labels.items() if label]
    ids = labeled if len(labeled) >= LEAST_LABELS else list(labels)
    chosen = sorted(np.random.default_rng(0).permutation(len(ids))[:MOST_ITEMS].tolist())
    names: list[str | None] = []
    found: list[list[np.ndarray]] = [[] for _ in sources]
    embedding = portion(progress, 0, 0.5)
    for start in range(0, len(chosen), BATCH):
        some = [ids[i] for i in chosen[start : start + BATCH]]
        images = {id: image for id in some if (image := _thumbnail(collection, id)) is not None}
        embedded = [_embed_each(source, list(images.values())) for _, source in sources]
        for id, vectors in zip(images, zip(*embedded, strict=True), strict=True):
            if all(isinstance(vector, np.ndarray) for vector in vectors):
                names.append(labels[id])
                for rows, vector in zip(found, vectors, strict=True):
                    rows.append(vector)
        embedding(start + len(some), len(chosen))
    raw = [np.array(rows) for rows in found]
    return compare_vectors([name for name, _ in sources], raw, names, progress=portion(progress, 0.5, 1))


def _thumbnail(collection: Collection, id: str) -> Image.Image | None:
    # what a source reads of files does not apply to a thumbnail
    jpeg = collection.thumbnail(id)
    try:
        return None if jpeg is None else decode_image(jpeg)
    except ImageError:
        return None


def _embed_each(source: Embedder | HandCrafted, images: list[Any]) -> list[Any]:
    # the engine of a server makes unit vectors only, which is enough here
    return source.features_each(images) if isinstance(source, HandCrafted) else source.embed_each(images)


def compare_vectors(
    sources: Sequence[str],
    raw: Sequence[np.ndarray],
    labels: Sequence[str | None],
    *,
    progress: Progress = lambda done, total: None,
) -> EncoderComparison:
    """Compare vectors of the same N images.

    Args:
        sources: names, at least one.
        raw: for each source (N, D) float32.
        labels: N labels; None or "": unlabeled, as are those of classes with fewer than 5 images.
        progress: called with (done, total), counted in folds of all classifiers.
    """
    if len(labels) <= NEIGHBORS:
        raise InvalidRequest(f"A comparison needs more than {NEIGHBORS} readable images, got {len(labels)}.")
    vectors = [unit_rows(one).astype(np.float32) for one in raw]
    sizes = Counter(labels)
    # a class with fewer images may be missing in the images that a classifier is fitted on
    rows = np.array([k for k, label in enumerate(labels) if label and sizes[label] >= FOLDS], np.int64)
    classes, numbers = np.unique([str(labels[k]) for k in rows], return_inverse=True)
    usable = len(rows) >= LEAST_LABELS and len(classes) >= 2
    work: list[tuple[Kind, int]] = [(kind, k) for kind in CLASSIFIERS for k in range(len(vectors)) if usable]
    right: dict[tuple[Kind, int], np.ndarray] = {}
    for kind, k in work:
        part = portion(progress, len(right) / len(work), (len(right) + 1) / len(work))
        found = out_of_fold(vectors[k][rows], numbers.astype(np.int64), classifier=kind, progress=part)
        right[kind, k] = found.right
    places = [nearest(one, NEIGHBORS)[1] for one in vectors]
    scores = [
        EncoderScore(
            name,
            _interval(right.get(("linear", k))),
            _interval(right.get(("knn", k))),
            paired_difference(right["linear", k], right["linear", 0]) if usable and k else None,
            rankme(vectors[k]),
            uniformity(vectors[k]),
            _agreement(places, k),
        )
        for k, name in enumerate(sources)
    ]
    return EncoderComparison(tuple(scores), len(rows) if usable else 0, len(labels), _conclusion(scores, len(rows)))


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
    shared = [(places[k][:, :, None] == one[:, None, :]).any(axis=2).mean() for one in others]
    return float(np.mean(shared)) if shared else None


def _interval(right: np.ndarray | None) -> Interval | None:
    return None if right is None else (float(right.mean()), *confidence_interval(right))


def _conclusion(scores: Sequence[EncoderScore], labels: int) -> str:
    if scores[0].linear is None:
        few = f"{labels} labels are too few" if labels else "Without labels it is impossible"
        return (
            f"{few} to compare accuracies; put images into one folder per class, or give --labels with {LEAST_LABELS} "
            "or more. The scores above show whether vectors collapsed, not which encoder separates your classes."
        )
    best = max(scores, key=lambda one: one.linear or (0.0,))
    if len(scores) == 1:
        return f"With {labels} labels, {best.source} reaches {_shown(best.linear)}."
    differences = [one.against_first for one in scores[1:] if one.against_first is not None]
    unclear = len(differences) - count_clear([one.p for one in differences])
    start = f"With {labels} labels, {best.source} has the highest accuracy,"
    if not unclear:
        return f"{start} and every difference to {scores[0].source} is clear."
    return (
        f"{start} but {unclear} of {len(differences)} differences to {scores[0].source} may be chance; label more "
        "images to decide."
    )


def count_clear(ps: Sequence[float]) -> int:
    """Return how many of several tests are clear by Holm's method: it is wrong on any of them at a level of 5%."""
    ranked = sorted(ps)
    return next((i for i, p in enumerate(ranked) if p * (len(ranked) - i) > LEVEL), len(ranked))


def _shown(value: Interval | None) -> str:
    return "" if value is None else f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"
