"""A labeled set prepared for repeated evaluation: its images pass the eval transform once and are kept as uint8 crops.

Each evaluation during training then costs only the forward passes, and yields the score of the exported encoder. The
processes of a distributed run share the images; the first one computes the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.hand_crafted import HandCrafted
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError, NoImages
from nnclr_hub.images.source import PackedImage

from ..data.datasets import EvaluationSet, ImageFiles
from ..distributed import Ranks
from .features import Features, PartFeatures

BATCH = 256
Progress = Callable[[int, int], None]
Protocol = Callable[[Features], Iterator[tuple[str, float]]]  # yields (name, score)


class Share(NamedTuple):
    """The images of a part of a labeled set that a process has.

    numbers: (N,) int64, their places in the part.
    images: (N, S, S, C) uint8 crops, or (N, D) float32 features.
    labels: (N,) int64.
    """

    numbers: np.ndarray
    images: np.ndarray
    labels: np.ndarray


class LabeledSet:
    """Both parts of a labeled set as crops.

    Args:
        ranks: each of them has a share of the images.
        progress: called with (done, total) while the images are decoded.

    Attributes:
        tested: number of images that are scored; 0 on other ranks than the first.
        split: see EvaluationSet.

    Raises:
        NoImages: none of the images of a part can be read.
    """

    def __init__(
        self,
        data: EvaluationSet,
        preprocessing: Preprocessing,
        ranks: Ranks,
        progress: Progress = lambda done, total: None,
    ) -> None:
        self.name, self.split, self._classes, self._ranks = data.name, data.split, data.train.classes, ranks
        transform = EvalTransform(preprocessing)
        total = len(data.train.paths) + len(data.test.paths)
        self._train = _crops(data.train, transform, ranks, lambda done: progress(done, total))
        self._test = _crops(data.test, transform, ranks, lambda done: progress(done + len(data.train.paths), total))
        self.tested = sum(ranks.collect(len(self._test.labels)) or ())

    def embed(self, encoder: Encoder | HandCrafted, progress: Progress = lambda done, total: None) -> Features | None:
        """Compute the features of all crops; `progress` is called with (done, total).

        Returns:
            None on other ranks than the first.
        """
        train, test = self._train, self._test
        total = len(train.labels) + len(test.labels)
        share = (
            train._replace(images=_embed(encoder, train.images, lambda done: progress(done, total))),
            test._replace(images=_embed(encoder, test.images, lambda done: progress(done + len(train.labels), total))),
        )
        shares = self._ranks.collect(share)
        if shares is None:
            return None
        whole_train, whole_test = (_whole([share[number] for share in shares]) for number in range(2))
        return Features(self.name, self._classes, whole_train, whole_test, device=str(encoder.device))


def scores_of(
    sets: Sequence[LabeledSet],
    encoder: Encoder | HandCrafted,
    protocols: Sequence[Protocol],
    progress: Progress = lambda done, total: None,
) -> dict[str, float]:
    """Score an encoder on labeled sets; {} on other ranks than the first, which share the work.

    Args:
        protocols: functions that yield (name, score).
        progress: called with (done, total) for each set.
    """
    features = [found for one in sets if (found := one.embed(encoder, progress)) is not None]
    # plain numbers: checkpoints keep them, and load no other types
    return {name: float(score) for protocol in protocols for one in features for name, score in protocol(one)}


def _crops(files: ImageFiles, transform: EvalTransform, ranks: Ranks, progress: Callable[[int], None]) -> Share:
    """Return the share of this process of the labeled images that can be read."""

    def crop(path: Path | PackedImage) -> np.ndarray | None:
        try:
            return transform.crop(transform.read_image(path))
        except ImageError:
            return None  # the pack has reported it already

    local_numbers = (files.labels >= 0).nonzero()[0][ranks.rank :: ranks.world]
    labeled = files.keep(local_numbers)
    crops, read = [], []
    with ThreadPoolExecutor(usable_cores()) as pool:
        for done, (number, image) in enumerate(zip(local_numbers, pool.map(crop, labeled.paths), strict=True), 1):
            if image is not None:
                crops.append(image)
                read.append(number)
            progress(min(done * ranks.world, len(files.paths)))
    ranks.wait()  # decoding may take longer on one of them than an operation may
    if not ranks.any(bool(crops)):
        raise NoImages("None of the evaluation images can be read; check the files in val/ or test/.")
    numbers = np.array(read, np.int64)
    return Share(numbers, np.stack(crops) if crops else np.zeros(0, np.uint8), files.labels[numbers])


def _whole(shares: Sequence[Share]) -> PartFeatures:
    """Put the images of all processes in the order of the part."""
    shares = [one for one in shares if len(one.labels)]
    numbers, features, labels = (np.concatenate(columns) for columns in zip(*shares, strict=True))
    order = np.argsort(numbers)
    return PartFeatures(features[order], labels[order])


def _embed(encoder: Encoder | HandCrafted, crops: np.ndarray, progress: Callable[[int], None]) -> np.ndarray:
    rows = []
    for start in range(0, len(crops), BATCH):
        rows.append(encoder.forward_crops(crops[start : start + BATCH]))
        progress(start + len(rows[-1]))
    return np.concatenate(rows) if rows else np.zeros(0, np.float32)
