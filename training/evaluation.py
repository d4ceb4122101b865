"""Evaluate the encoder at each checkpoint, by 20-NN and a linear classifier.

The images of labeled sets pass the eval transform once and are kept as uint8 crops. Each evaluation then costs only the
forward passes, and yields the score of the exported encoder. The processes of a distributed run share the images; the
first one computes the scores.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import EvalTransform, Preprocessing
from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.hub.layout import HELD_OUT
from nnclr_hub.images.listing import is_packed
from nnclr_hub.images.source import Source
from nnclr_hub.progress import bar
from nnclr_hub.table_rows import LabelTable

from .data.datasets import EvaluationSet, ImageFiles
from .distributed import ALONE, Ranks
from .evals.features import Features, PartFeatures
from .evals.frozen import knn, quick_linear
from .evals.task import table_task
from .recipes import Recipe
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


class Evaluation:
    """20-NN and a linear classifier on labeled sets.

    `images` is {"NAME": digest of the images that the set is scored with}, `splits` {"NAME": split that scores}, and
    `tested` {"NAME": number of images that are scored}.
    """

    def __init__(self, sets: Sequence[EvaluationSet], recipe: Recipe, ranks: Ranks, console: Console) -> None:
        self._sets, self.images = labeled_sets(sets, recipe.preprocessing, recipe.eval_images, console, ranks)
        self.splits = {one.name: one.split for one in self._sets}
        self.tested = {one.name: one.tested for one in self._sets}

    def scores(self, run: Run) -> dict[str, float]:
        """Return {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}; {} on the other ranks, which help."""
        if not self._sets:
            return {}
        with exact_inference():
            return scores_of(self._sets, self.encoder(run), PROTOCOLS)

    def encoder(self, run: Run) -> Encoder:
        """Return the encoder that would be exported now.

        It has a copy of the network, because an Encoder changes the mode and the memory layout of its network.
        """
        backbone = copy.deepcopy(run.network[0])
        return Encoder(backbone, run.recipe.preprocessing, name=run.out.name, device=run.ranks.where)


def labeled_sets(
    given: Sequence[EvaluationSet], preprocessing: Preprocessing, most: int, console: Console, ranks: Ranks = ALONE
) -> tuple[list[LabeledSet], dict[str, str]]:
    """Decode labeled sets; also return {"NAME": digest of their images}.

    Args:
        most: maximum number of images per split. Of a large set, the same random part is used each time.
        ranks: each of them decodes a share of the images.
    """
    sets, digests = [], {}
    for data in given:
        parts = [data.train, data.test]
        for number, part in enumerate(parts):
            if len(part.paths) > most:
                parts[number] = part.keep(np.sort(np.random.default_rng(0).permutation(len(part.paths))[:most]))
                console.print(f"{data.name}: scoring {most} of {len(part.paths)} images of a split", highlight=False)
        limited = replace(data, train=parts[0], test=parts[1])
        digests[data.name] = hashlib.sha256(f"{parts[0].digest} {parts[1].digest}".encode()).hexdigest()[:16]
        with bar(console, f"decoding {data.name} for evaluation") as advance:
            sets.append(LabeledSet(limited, preprocessing, ranks, advance))
    return sets, digests


def table_set(labels: LabelTable | Path, data: Sequence[str | Path]) -> EvaluationSet:
    """Return the images of a table of labels as a set, of which a fifth of each class is held out.

    Args:
        labels: a table, see `read_labeled`.
        data: folders, or names of data sets.

    Raises:
        NoImages, InvalidRequest: see `table_task`; or the table has the name of a data folder.
    """
    places = [one for one in data if is_packed(one) or Path(one).is_dir()]
    table = LabelTable.of(labels)
    task = table_task(table, places or [table.file])
    if table.file.stem in {Path(one).resolve().name for one in places}:
        raise InvalidRequest(f"{table} has the name of a data folder, whose scores have that name; rename the table.")
    parts = [ImageFiles(part.paths, part.labels, task.classes) for part in (task.train, task.test)]
    return EvaluationSet(table.file.stem, *parts, split=HELD_OUT, left_out=task.left_out)


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
    """Both parts of a labeled set as crops, of which each rank has a share.

    Args:
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
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.name, self.split, self._classes, self._ranks = data.name, data.split, data.train.classes, ranks
        transform = EvalTransform(preprocessing)
        total = len(data.train.paths) + len(data.test.paths)
        self._train = _crops(data.train, transform, ranks, lambda done: progress(done, total))
        self._test = _crops(data.test, transform, ranks, lambda done: progress(done + len(data.train.paths), total))
        self.tested = sum(ranks.collect(len(self._test.labels)) or ())

    def embed(self, encoder: Encoder) -> Features | None:
        """Compute the features of all crops; None on other ranks than the first."""
        parts = [part._replace(images=_embed(encoder, part.images)) for part in (self._train, self._test)]
        shares = self._ranks.collect(parts)
        if shares is None:
            return None
        train, test = (_whole([share[number] for share in shares]) for number in range(2))
        return Features(self.name, self._classes, train, test, device=str(encoder.device))


def scores_of(sets: Sequence[LabeledSet], encoder: Encoder, protocols: Sequence[Protocol]) -> dict[str, float]:
    """Score an encoder on labeled sets; {} on other ranks than the first, which share the work."""
    features = [found for one in sets if (found := one.embed(encoder)) is not None]
    # plain numbers: checkpoints keep them, and load no other types
    return {name: float(score) for protocol in protocols for one in features for name, score in protocol(one)}


def _crops(files: ImageFiles, transform: EvalTransform, ranks: Ranks, progress: Callable[[int], None]) -> Share:
    """Return the share of this process of the labeled images that can be read."""

    def crop(path: Path | Source) -> np.ndarray | None:
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


def _embed(encoder: Encoder, crops: np.ndarray) -> np.ndarray:
    rows = [encoder.forward_crops(crops[start : start + BATCH]) for start in range(0, len(crops), BATCH)]
    return np.concatenate(rows) if rows else np.zeros(0, np.float32)
