"""A labeled set prepared for repeated evaluation: its images pass the eval transform once and are kept as uint8 crops.

Each evaluation during training then costs only the forward passes, and yields the score of the exported encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

import numpy as np

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.hand_crafted import HandCrafted
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError, NoImages

from ..data.datasets import EvaluationSet, ImageFiles
from .features import Features, PartFeatures

BATCH = 256


class LabeledSet:
    """Both parts of a labeled set as crops.

    Args:
        progress: called with (done, total) while the images are decoded.
    """

    def __init__(
        self,
        data: EvaluationSet,
        preprocessing: Preprocessing,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.name, self._classes = data.name, data.train.classes
        transform = EvalTransform(preprocessing)
        total = len(data.train.paths) + len(data.test.paths)
        self._train = _crops(data.train, transform, lambda done: progress(done, total))
        self._test = _crops(data.test, transform, lambda done: progress(done + len(data.train.paths), total))

    @property
    def tested(self) -> int:
        """Number of images that are scored."""
        return len(self._test[1])

    def embed(
        self, encoder: Encoder | HandCrafted, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Features:
        """Compute the features of all crops; `progress` is called with (done, total)."""
        (train, train_labels), (test, test_labels) = self._train, self._test
        total = len(train) + len(test)
        return Features(
            self.name,
            self._classes,
            PartFeatures(_embed(encoder, train, lambda done: progress(done, total)), train_labels),
            PartFeatures(_embed(encoder, test, lambda done: progress(done + len(train), total)), test_labels),
            device=str(encoder.device),
        )


def _crops(
    files: ImageFiles, transform: EvalTransform, progress: Callable[[int], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (N, S, S, 3) uint8 and (N,) int64 for the labeled images that can be read."""

    def crop(path: Path) -> np.ndarray | None:
        try:
            return transform.crop(decode_image(path))
        except ImageError:
            return None  # the pack has reported it already

    labeled = files.keep((files.labels >= 0).nonzero()[0])
    crops, labels = [], []
    with ThreadPoolExecutor(cpu_count()) as pool:
        for done, (image, label) in enumerate(zip(pool.map(crop, labeled.paths), labeled.labels, strict=True), 1):
            if image is not None:
                crops.append(image)
                labels.append(label)
            progress(done)
    if not crops:
        raise NoImages("None of the evaluation images can be read; check the files in val/ or test/.")
    return np.stack(crops), np.array(labels, np.int64)


def _embed(encoder: Encoder | HandCrafted, crops: np.ndarray, progress: Callable[[int], None]) -> np.ndarray:
    rows = []
    for start in range(0, len(crops), BATCH):
        rows.append(encoder.forward_crops(crops[start : start + BATCH]))
        progress(start + len(rows[-1]))
    return np.concatenate(rows)
