"""Evaluate the encoder at each checkpoint, by 20-NN and a linear classifier.

The images of labeled sets pass the eval transform once and are kept as uint8 crops. Each evaluation then costs only the
forward passes, and yields the score of the exported encoder. In a distributed run the first process scores.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError, NoImages
from nnclr_hub.images.source import Source
from nnclr_hub.progress import bar

from .evals.features import Features, PartFeatures
from .evals.frozen import knn, quick_linear
from .evals.task import Part, Task
from .run import Run

BATCH = 256
Protocol = Callable[[Features], Iterator[tuple[str, float]]]  # yields (name, score)
PROTOCOLS: tuple[Protocol, ...] = (knn, quick_linear)


@contextmanager
def exact_inference() -> Iterator[None]:
    """Run an encoder's forward passes so that the scores equal those of the exported weights on any device.

    The run's settings for training steps are restored afterwards.

    - Passes run eagerly and without cuDNN's search for algorithms. The last batch of each set has its own size, and
      each size would cost seconds of compiling or searching for a pass or two.
    - float32 products do not use TF32. With mantissas of ten bits some images change their neighbors, and the score
      differs from that of another device.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision()
    cudnn.benchmark, cudnn.allow_tf32 = False, False
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        cudnn.benchmark, cudnn.allow_tf32 = before[:2]
        torch.set_float32_matmul_precision(before[2])


def encoder_of(run: Run) -> Encoder:
    """Return the encoder that would be exported now.

    It has a copy of the network, because an Encoder changes the mode and the memory layout of its network.
    """
    backbone = copy.deepcopy(run.network[0])
    return Encoder(backbone, run.recipe.preprocessing, name=run.out.name, device=run.ranks.where)


class LabeledSet:
    """Both parts of a labeled set as crops.

    Args:
        most: maximum number of images per part. Of a large part, the same random images are used each time.

    Attributes:
        images: digest of the images that the set is scored with.
        tested: number of images that are scored.
        split: see Task.
    """

    def __init__(self, task: Task, preprocessing: Preprocessing, most: int, console: Console) -> None:
        parts = [task.train, task.test]
        for number, part in enumerate(parts):
            if len(part.paths) > most:
                parts[number] = part.keep(np.sort(np.random.default_rng(0).permutation(len(part.paths))[:most]))
                console.print(f"{task.name}: scoring {most} of {len(part.paths)} images of a split")
        self.name, self.split, self._classes = task.name, task.split, task.classes
        self.images = hashlib.sha256(f"{parts[0].digest} {parts[1].digest}".encode()).hexdigest()[:16]
        transform, first = EvalTransform(preprocessing), len(parts[0].paths)
        total = first + len(parts[1].paths)
        with bar(console, f"decoding {task.name} for evaluation") as advance:
            self._train = _crops(parts[0], transform, lambda done: advance(done, total))
            self._test = _crops(parts[1], transform, lambda done: advance(done + first, total))
        self.tested = len(self._test[1])

    def embed(self, encoder: Encoder) -> Features:
        """Compute the features of all crops."""
        train, test = (PartFeatures(_embed(encoder, crops), labels) for crops, labels in (self._train, self._test))
        return Features(self.name, self._classes, train, test, device=str(encoder.device))


def scores_of(
    sets: Sequence[LabeledSet], encoder: Encoder, protocols: Sequence[Protocol] | None = None
) -> dict[str, float]:
    """Return {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}."""
    with exact_inference():
        features = [one.embed(encoder) for one in sets]
        # plain numbers: checkpoints keep them, and load no other types
        return {
            name: float(score)
            for protocol in protocols or PROTOCOLS
            for one in features
            for name, score in protocol(one)
        }


def _crops(part: Part, transform: EvalTransform, progress: Callable[[int], None]) -> tuple[np.ndarray, np.ndarray]:
    """Return the labeled images that can be read, (N, S, S, C) uint8, and their labels, (N,) int64."""

    def crop(path: Path | Source) -> np.ndarray | None:
        try:
            return transform.crop(transform.read_image(path))
        except ImageError:
            return None  # the pack has reported it already

    labeled = part.keep(np.flatnonzero(part.labels >= 0))
    crops, rows = [], []
    with ThreadPoolExecutor(usable_cores()) as pool:
        for row, image in enumerate(pool.map(crop, labeled.paths)):
            if image is not None:
                crops.append(image)
                rows.append(row)
            progress(row + 1)
    if not crops:
        raise NoImages("None of the evaluation images can be read; check the files in val/ or test/.")
    return np.stack(crops), labeled.labels[rows]


def _embed(encoder: Encoder, crops: np.ndarray) -> np.ndarray:
    rows = [encoder.forward_crops(crops[start : start + BATCH]) for start in range(0, len(crops), BATCH)]
    return np.concatenate(rows)
