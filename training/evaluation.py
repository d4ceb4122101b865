"""Evaluate the encoder at each checkpoint."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.hub.layout import HELD_OUT
from nnclr_hub.images.listing import is_packed
from nnclr_hub.method import Learner
from nnclr_hub.progress import bar
from nnclr_hub.table_rows import LabelTable

from .data.datasets import EvaluationSet, ImageFiles
from .distributed import ALONE, Ranks
from .evals.frozen import knn, quick_linear
from .evals.labeled import LabeledSet, scores_of
from .evals.task import table_task
from .recipes import Recipe
from .run_folder import network

PROTOCOLS = (knn, quick_linear)


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

    Args:
        preprocessing: of the exported encoder.
        recipe: determines which network is exported.

    `images` is {"NAME": digest of the images that the set is scored with}, `splits` {"NAME": split that scores}, and
    `tested` {"NAME": number of images that are scored}.
    """

    def __init__(
        self,
        sets: Sequence[EvaluationSet],
        preprocessing: Preprocessing,
        recipe: Recipe,
        ranks: Ranks,
        console: Console,
    ) -> None:
        self._preprocessing, self._recipe, self._ranks, self._say = preprocessing, recipe, ranks, console
        self._sets, self.images = labeled_sets(sets, preprocessing, recipe.eval_images, console, ranks)
        self.splits = {one.name: one.split for one in self._sets}
        self.tested = {one.name: one.tested for one in self._sets}

    def scores(self, learner: Learner, name: str) -> dict[str, float]:
        """Return {"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}; {} on the other ranks, which help."""
        if not self._sets:
            return {}
        with exact_inference():
            return scores_of(self._sets, self.encoder(learner, name), PROTOCOLS)

    def encoder(self, learner: Learner, name: str) -> Encoder:
        """Return the encoder that would be exported now.

        It has a copy of the network, because an Encoder changes the mode and the memory layout of its network.
        """
        backbone = copy.deepcopy(network(learner, self._recipe)[0])
        return Encoder(backbone, self._preprocessing, name=name, device=self._ranks.where)

    def print_scores(self, epoch: float, scores: dict[str, float]) -> None:
        """Print the scores on one line."""
        if scores:
            shown = "  ".join(f"{key} {value:.3f}" for key, value in scores.items())
            self._say.print(f"epoch {epoch:g}  {shown}", highlight=False)


def labeled_sets(
    given: Sequence[EvaluationSet],
    preprocessing: Preprocessing,
    most: int,
    console: Console,
    ranks: Ranks = ALONE,
) -> tuple[list[LabeledSet], dict[str, str]]:
    """Decode labeled sets; also return {"NAME": digest of their images}.

    Args:
        most: maximum number of images per split.
        ranks: each of them decodes a share of the images.
    """
    sets, digests = [], {}
    for found in given:
        one = _at_most(found, most, console)
        digests[one.name] = hashlib.sha256(f"{one.train.digest} {one.test.digest}".encode()).hexdigest()[:16]
        with bar(console, f"decoding {one.name} for evaluation") as advance:
            sets.append(LabeledSet(one, preprocessing, ranks, advance))
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


def _at_most(data: EvaluationSet, most: int, console: Console) -> EvaluationSet:
    """Limit a large set to the same random part each time: its crops are kept in memory."""
    parts = [data.train, data.test]
    for number, part in enumerate(parts):
        if len(part.paths) > most:
            chosen = np.random.default_rng(0).permutation(len(part.paths))[:most]
            parts[number] = part.keep(np.sort(chosen))
            console.print(f"{data.name}: scoring {most} of {len(part.paths)} images of a split", highlight=False)
    return replace(data, train=parts[0], test=parts[1])
