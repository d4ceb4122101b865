"""What is asked of the encoder at each checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.method import Learner
from nnclr_hub.progress import bar

from .checkpoint import digest
from .data.datasets import EvaluationSet, evaluation_sets
from .evals.knn import knn
from .evals.labeled import LabeledSet
from .evals.linear import quick_linear
from .evals.pixels import Pixels
from .measuring import measuring
from .recipes import Recipe
from .run_folder import network

PROTOCOLS = (knn, quick_linear)


class Evaluation:
    """20-NN and a linear classifier on the data folders that have labels and a held-out split.

    Args:
        folders: the run's data.
        preprocessing: the exported encoder's.
        recipe: says which network is exported.
        where: the device.
        say: where progress is shown.

    `images` is {"NAME": digest} of what each set is scored with.
    """

    def __init__(
        self, folders: Sequence[Path], preprocessing: Preprocessing, recipe: Recipe, where: torch.device, say: Console
    ) -> None:
        self._preprocessing, self._recipe, self._where, self._say = preprocessing, recipe, where, say
        self._sets, self.pictures = labeled_sets(folders, preprocessing, recipe.eval_images, say)

    def scores(self, learner: Learner, name: str) -> dict[str, float]:
        """{"knn20/NAME": accuracy in [0, 1], "linear/NAME": ...}; the learner is in training mode afterwards."""
        backbone, _ = network(learner, self._recipe)
        encoder = Encoder(backbone, self._preprocessing, name=name, device=self._where)
        with measuring():
            features = [one.embed(encoder) for one in self._sets]
            scores = dict(score for protocol in PROTOCOLS for one in features for score in protocol(one))
        learner.train()
        return scores

    def warn_if_no_better_than_pixels(self, scores: Mapping[str, float]) -> None:
        """Says so where the images of a class are found as well without an encoder."""
        for one in self._sets:
            for name, floor in knn(one.embed(Pixels())):
                if scores.get(name, 1.0) <= floor:
                    self._say.print(
                        f"[yellow]warning[/] {name} is {scores[name]:.3f}, no better than raw pixels ({floor:.3f}): "
                        "train for longer (--set epochs=...), on more images, or from an encoder that has learned "
                        "something already (--init).",
                        highlight=False,
                    )

    def tell(self, epoch: float, scores: dict[str, float]) -> None:
        """Prints them in a line."""
        if scores:
            shown = "  ".join(f"{key} {value:.3f}" for key, value in scores.items())
            self._say.print(f"epoch {epoch:g}  {shown}", highlight=False)


def labeled_sets(
    folders: Sequence[Path], preprocessing: Preprocessing, most: int, say: Console
) -> tuple[list[LabeledSet], dict[str, str]]:
    """The data folders that can score an encoder, decoded, and {"NAME": digest} of their images.

    Args:
        folders: data folders; those without classes or a held-out part are passed over.
        preprocessing: the encoder's.
        most: images of a part that are looked at.
        say: where progress is shown.
    """
    sets, digests = [], {}
    for found in evaluation_sets(folders):
        one = _at_most(found, most, say)
        digests[one.name] = hashlib.sha256(f"{digest(one.train)} {digest(one.test)}".encode()).hexdigest()[:16]
        with bar(say, f"decoding {one.name} for evaluation") as advance:
            sets.append(LabeledSet(one, preprocessing, advance))
    return sets, digests


def _at_most(data: EvaluationSet, pictures: int, say: Console) -> EvaluationSet:
    """The set, or of a large one the same random part each time: its crops are kept in memory."""
    parts = [data.train, data.test]
    for number, part in enumerate(parts):
        if len(part.paths) > pictures:
            chosen = np.random.default_rng(0).permutation(len(part.paths))[:pictures]
            parts[number] = part.keep(np.sort(chosen))
            say.print(f"{data.name}: scored with {pictures} of {len(part.paths)} images of a part", highlight=False)
    return EvaluationSet(data.name, *parts)
