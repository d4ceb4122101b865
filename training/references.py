"""What a run is compared with: the labels that the nearest neighbors predict with other vectors.

These are starters, hand-crafted vectors, the parent or the untrained network, and the most common class.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.features import FeatureSource, extract_features, unit_rows
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.encoder.loader import load_encoder
from nnclr_hub.errors import ModelError
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.hub.layout import HELD_OUT, WEIGHTS
from nnclr_hub.hub.registry import MODELS, default_model
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.probe.cross_validation import FOLDS, K, out_of_fold
from nnclr_hub.probe.knn import knn_classify
from nnclr_hub.progress import bar
from nnclr_hub.store.settings import StoreSettings
from nnclr_hub.store.spec import CollectionSpec
from nnclr_hub.store.vector_transform import VectorTransform

from .data.datasets import EvaluationSet
from .recipes.auto import FREE_STARTER

SAMPLED = 1000  # most labeled images that decide, of all sets together; each starter embeds them in seconds
HAND_CRAFTED = ("hog", "color", "hog+color")
MAJORITY, UNTRAINED = "the most common class", "the untrained network"
Correct = np.ndarray  # (N,) float, 1 where the prediction is the label


class References:
    """What a run is compared with: who predicts which label.

    Args:
        sets: labeled sets of the run. Without any, every method does nothing.
        reading: the page and the channels of each file.
        channels: of an image; starters take three.
        saved: `state` of a checkpoint. It is used if the images are the same.
    """

    def __init__(
        self,
        sets: Sequence[EvaluationSet],
        reading: ImageReading,
        channels: int,
        saved: Mapping[str, Any] | None,
        console: Console,
    ) -> None:
        self._sets = [_sample(one, SAMPLED // len(sets)) for one in sets]
        self._reading, self._channels, self._console = reading, channels, console
        digests = [f"{one.train.digest} {one.test.digest} {one.split}" for one in self._sets]
        labels = [(part.classes, part.labels.tolist()) for one in self._sets for part in (one.train, one.test)]
        self._digest = hashlib.sha256(f"{digests} {labels} {reading}".encode()).hexdigest()[:32]
        known = saved["correct"] if saved and saved["digest"] == self._digest else {}
        self.correct: dict[str, Correct] = {name: np.array(list(text), float) for name, text in known.items()}

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"digest": self._digest, "correct": {name: _as_text(correct) for name, correct in self.correct.items()}}

    def measure(self, source: str, encoder: Callable[[], FeatureSource] | None) -> None:
        """Score what the run is compared with, and print it.

        Args:
            source: name of the encoder that the run starts from.
            encoder: returns it; None if it no longer exists.
        """
        if not self._sets:
            return
        starters = dict.fromkeys((FREE_STARTER, default_model())) if self._channels == 3 else {}
        if not {*HAND_CRAFTED, *starters} <= self.correct.keys():
            self.correct |= self._common(starters)
        if source not in self.correct and encoder is not None:
            self.score(source, encoder())
        raw = {name: f" ({value:.1%} raw)" for name, value in self.accuracies(raw=True).items()}
        shown = "; ".join(f"{name} {value:.1%}{raw.get(name, '')}" for name, value in self.accuracies().items())
        self._console.print(f"before the run, on {self.labels} labeled images: {shown}", highlight=False, markup=False)

    def score(self, name: str, source: FeatureSource) -> None:
        """Score vectors by their nearest neighbors: raw, and as a collection compares them."""
        if not self._sets:
            return
        with bar(self._console, f"scoring {name}") as advance:
            scored = [_correct(one, source, advance) for one in self._sets]
        for kind in scored[0]:
            self.correct[name + kind] = np.concatenate([correct[kind] for correct in scored])

    def accuracies(self, *, raw: bool = False) -> dict[str, float]:
        """Return the accuracy by name, of the raw vectors or as a collection compares them."""
        means = {name: float(correct.mean()) for name, correct in self.correct.items()}
        return {name.removesuffix(RAW): value for name, value in means.items() if name.endswith(RAW) == raw}

    @property
    def labels(self) -> int:
        """Number of images that are scored."""
        return len(next(iter(self.correct.values()), ()))

    def _common(self, starters: Iterable[str]) -> dict[str, Correct]:
        """Return the scores that do not depend on the run, from the cache folder or measured."""
        digests = [MODELS[name].sha256[WEIGHTS] for name in starters]
        named = [FLOORS[name].fingerprint for name in HAND_CRAFTED]
        kind = CollectionSpec(8, fingerprint="any", vectors="auto").decided(transforms=True).vectors
        key = hashlib.sha256(f"{self._digest} {digests} {named} {kind} {K}".encode()).hexdigest()[:32]
        cache = cache_folder() / "references" / f"{key}.json"
        try:
            return {name: np.array(list(text), float) for name, text in json.loads(cache.read_text("utf-8")).items()}
        except (OSError, ValueError):
            pass
        before, self.correct = self.correct, {}
        self.correct[MAJORITY] = np.concatenate([_majority(one) for one in self._sets])
        for name in HAND_CRAFTED:
            self.score(name, replace(FLOORS[name], reading=self._reading))
        complete = True
        for name in starters:
            try:
                self.score(name, load_encoder(name, reading=None if self._reading == PLAIN else self._reading))
            except ModelError as error:
                complete = False
                self._console.print(f"note: {name} is not compared: {error}", highlight=False)
        common, self.correct = self.correct, before
        if complete:
            cache.parent.mkdir(parents=True, exist_ok=True)
            replace_file(cache, json.dumps({name: _as_text(correct) for name, correct in common.items()}))
        return common


RAW = " raw"  # suffix of the name of a score


def _sample(data: EvaluationSet, most: int) -> EvaluationSet:
    """Limit a set to the same random part each time; half of it are images to score."""
    parts, random = [], np.random.default_rng(0)
    for part in (data.train, data.test):
        known = np.flatnonzero(part.labels >= 0)
        parts.append(part.keep(np.sort(random.permutation(known)[: max(2, most // 2)])))
    return replace(data, train=parts[0], test=parts[1])


def _correct(data: EvaluationSet, source: FeatureSource, advance: Callable[[int, int], None]) -> dict[str, Correct]:
    """Return what the nearest neighbors predict correctly, by kind of vector; an unreadable image is wrong.

    A part that was held out from one pool of images predicts it by cross-validation: all of them are scored.
    """
    raw = np.asarray(extract_features(source, [*data.train.paths, *data.test.paths], progress=advance).raw)
    labels = np.concatenate([data.train.labels, data.test.labels])
    readable = np.asarray(np.isfinite(raw).all(axis=1))
    tested = np.arange(len(labels)) >= (0 if data.split == HELD_OUT else len(data.train.labels))
    if source.name in HAND_CRAFTED:
        kinds = {"": VectorTransform.fit(raw[readable], "center")(raw)}
    else:
        kinds = {"": _as_compared(source, raw, readable), RAW: unit_rows(raw)}
    correct_by_kind = {}
    for kind, rows in kinds.items():
        correct = np.zeros(len(labels))
        if data.split != HELD_OUT:
            known, asked = readable & ~tested, readable & tested
            correct[asked] = knn_classify(rows[known], labels[known], rows[asked], k=K) == labels[asked]
        elif readable.sum() >= FOLDS:
            correct[readable] = out_of_fold(rows[readable], labels[readable], classifier="knn").right
        correct_by_kind[kind] = correct[tested]
    return correct_by_kind


def _as_compared(source: FeatureSource, raw: np.ndarray, readable: np.ndarray) -> np.ndarray:
    """Return vectors as a collection of them compares them by default."""
    kind = CollectionSpec.of(source).decided(transforms=True).vectors
    few = readable.sum() < StoreSettings().fit_from
    return unit_rows(raw) if few or kind in ("raw", "auto") else VectorTransform.fit(raw[readable], kind)(raw)


def _majority(data: EvaluationSet) -> Correct:
    pool = np.concatenate([data.train.labels, data.test.labels]) if data.split == HELD_OUT else data.test.labels
    return (pool == np.bincount(data.train.labels).argmax()).astype(float)


def _as_text(correct: Correct) -> str:
    return "".join(map(str, correct.astype(int)))
