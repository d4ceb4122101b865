"""Measure whether the classes of labeled images differ in color or in shape. `auto` chooses its views by the result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from rich.console import Console

from nnclr_hub.encoder.features import extract_features, unit_rows
from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.probe.cross_validation import FOLDS, out_of_fold
from nnclr_hub.probe.uncertainty import paired_difference
from nnclr_hub.progress import bar

from .data.datasets import ImageFiles
from .recipes.auto import Cues

SAMPLED = 1000  # most images that are read, in a few seconds


def measure_cues(labeled: ImageFiles, console: Console, reading: ImageReading = PLAIN) -> Cues | None:
    """Classify some images by the nearest of the others, by `shape` alone and by `color` alone.

    Args:
        labeled: not the images that score the run.
        reading: the page and the channels of each file.

    Returns:
        None with fewer than two classes, or fewer images than folds of the cross-validation.

    Raises:
        NoImages: none of the images can be read.
    """
    known = np.flatnonzero(labeled.labels >= 0)
    sample = labeled.keep(np.sort(np.random.default_rng(0).permutation(known)[:SAMPLED]))
    if len(np.unique(sample.labels)) < 2:
        return None
    found = []
    for name in ("color", "shape"):
        with bar(console, f"labels by {name}") as advance:
            source = replace(FLOORS[name], reading=reading)
            found.append(extract_features(source, sample.paths, progress=advance))
    readable = np.array([i for i in range(len(sample.paths)) if not any(i in one.broken for one in found)], np.int64)
    labels = sample.labels[readable]
    if len(labels) < FOLDS or len(np.unique(labels)) < 2:
        return None
    color, shape = (
        out_of_fold(unit_rows(np.asarray(one.raw)[readable]), labels, classifier="knn").right for one in found
    )
    return Cues(float(color.mean()), float(shape.mean()), paired_difference(color, shape).low > 0)
