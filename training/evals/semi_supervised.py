"""Fine-tuning on 1% and 10% of the labels, with BYOL's protocol.

Random crops and flips, SGD with Nesterov momentum, no decay. Validation images (val/, or else a fifth of the training
images outside the subset) select learning rate and epochs among BYOL's. The subset is then trained on with the
selected values, and the test images are scored once. The results include every trial.

The subset has the same share of each class, at least one image each. For ImageNet, `subset` takes the file lists that
SimCLR published (1percent.txt, 10percent.txt), so that scores are comparable.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nnclr_hub.errors import InvalidRequest

from .supervised import ClassifierPlan
from .task import Part, metric_values
from .trainer import ClassifierTrainer, require_single_label

RATES = (0.01, 0.02, 0.05, 0.1, 0.005)  # for 256 images a step
EPOCHS = (30, 50)


def semi_supervised(
    subject: ClassifierTrainer,
    *,
    shares: tuple[float, ...] = (0.01, 0.1),
    subset: tuple[str, ...] = (),
    rates: tuple[float, ...] = RATES,
    epochs: tuple[int, ...] = EPOCHS,
    batch_size: int = 1024,
    micro_batch: int = 128,
    workers: int = 8,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Yield, for each share, ("semi_supervised/NAME/1%", the set's metric), top-5, and the scores of the trials.

    Args:
        shares: of the training images.
        subset: a file list for each share, one file name per line; empty: the same share of each class.
        rates: learning rates to select from, for a batch of 256.
        epochs: numbers of epochs to select from.
        batch_size: images per step; shrinks so that an epoch has 32 steps.
        micro_batch: images per pass of the network.

    Raises:
        InvalidRequest: a list without training images, or a number of lists that differs from that of shares.
    """
    if subset and len(subset) != len(shares):
        raise InvalidRequest(f"subset needs one file list per share; got {len(shares)} shares and {len(subset)} lists.")
    train = subject.task.train
    require_single_label(subject.task, "semi_supervised")
    for number, share in enumerate(shares):
        chosen = _listed(train, Path(subset[number])) if subset else stratified(train.labels, share, seed)
        part = _part(train, chosen)
        val = subject.task.val or _part(train, _rest(train.labels, chosen, seed))
        batch = subject.batch_size(batch_size, part)

        def plan(rate: float, length: int, batch: int = batch) -> ClassifierPlan:
            return ClassifierPlan(
                epochs=length,
                lr=rate * batch / 256,
                batch_size=batch,
                micro_batch=min(micro_batch, batch),
                optimizer="sgd",
                workers=workers,
                seed=seed,
            )

        name = f"{subject.task.name}/{100 * share:g}%"
        best = (-1.0, rates[0], epochs[0])
        for rate in rates:
            for length in epochs:
                trained = subject.train(plan(rate, length), f"semi_supervised-{100 * share:g}%", part=part)
                scores, labels = trained.scores(val, "val")
                reached = next(metric_values("", subject.task, scores, labels))[1]
                yield f"semi_supervised/{name}/lr={rate:g},epochs={length}", reached
                best = max(best, (reached, rate, length))
        trained = subject.train(plan(*best[1:]), f"semi_supervised-{100 * share:g}%", part=part)
        scores, labels = trained.scores(subject.task.test)
        for key, value in metric_values("semi_supervised", subject.task, scores, labels):
            yield key.replace(subject.task.name, name, 1), value


def stratified(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return positions of a share of each class, at least one per class, in order.

    Args:
        share: above 0, at most 1.
    """
    if not 0 < share <= 1:
        raise InvalidRequest(f"A share of the labels must be above 0 and at most 1; got {share:g}.")
    draws = np.random.default_rng(seed)
    rows = [draws.permutation(np.flatnonzero(labels == one)) for one in np.unique(labels)]
    return np.sort(np.concatenate([one[: max(1, round(share * len(one)))] for one in rows]))


def _listed(train: Part, table: Path) -> np.ndarray:
    try:
        names = set(table.read_text("utf-8").split())
    except OSError as error:
        raise InvalidRequest(f"{table} cannot be read ({error.strerror}); name a list of file names.") from error
    chosen = np.array([i for i, path in enumerate(train.paths) if path.name in names], np.int64)
    missing = names - {train.paths[i].name for i in chosen}
    if not len(chosen):
        raise InvalidRequest(f"{table} names none of the training images, such as {train.paths[0].name}.")
    if missing:
        raise InvalidRequest(
            f"{table} names {len(missing)} files that are not training images, such as {min(missing)}."
        )
    return chosen


def _rest(labels: np.ndarray, chosen: np.ndarray, seed: int) -> np.ndarray:
    """Return a fifth of each class outside the subset, as validation images."""
    rest = np.setdiff1d(np.arange(len(labels)), chosen)
    if not len(rest):
        raise InvalidRequest("The subset contains all training images, so none are left for validation; add a val/.")
    return rest[stratified(labels[rest], 0.2, seed)]


def _part(train: Part, index: np.ndarray) -> Part:
    return Part(tuple(train.paths[i] for i in index), train.labels[index])
