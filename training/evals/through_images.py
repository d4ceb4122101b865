"""The protocols that train through images: linear evaluation, semi-supervised and supervised fine-tuning.

- `linear_images` is the paper's linear evaluation: a linear classifier on the frozen encoder, 90 epochs of LARS with
  Nesterov momentum 0.9, a cosine schedule from a rate of 1, batches of 4096, random crops and flips. A small set uses
  smaller batches to get enough steps; the rate stays 1, since the length of LARS's steps is a fixed share of the
  weights' length. (The paper does not state whether its rate is meant for its batch or for 256 images.)
- `semi_supervised` is fine-tuning on 1% and 10% of the labels, with BYOL's protocol: SGD with Nesterov momentum, no
  decay. Validation images (val/, or else a fifth of the training images outside the subset) select learning rate and
  epochs among BYOL's. The subset is then trained on with the selected values, and the test images are scored once.
  The results include every trial. The subset has the same share of each class, at least one image each; for ImageNet,
  `subset` takes the file lists that SimCLR published (1percent.txt, 10percent.txt), so that scores are comparable.
- `finetune` is "Self-supervised Learning as a Pre-training Step": 100 epochs. A ResNet uses random crops and flips and
  SGD at 0.1 for 256 images; a vision transformer DeiT's recipe: RandAugment, mixup, cutmix, erasing, label smoothing,
  stochastic depth, AdamW at 5e-4 for 512. With a `random:` source the same call trains from scratch. The network is
  written to OUT/encoders/ as a model folder, which is a source again.

In all of them `batch_size` shrinks so that an epoch has 32 steps, and `micro_batch` images pass the network together.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nnclr_hub.encoder.backbones import is_convolutional
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.publish.export import export_model
from nnclr_hub.publish.provenance import parent_record

from .classifier import ClassifierPlan, ClassifierTrainer, require_single_label
from .task import Part, metric_values

RATES = (0.01, 0.02, 0.05, 0.1, 0.005)  # for 256 images a step
EPOCHS = (30, 50)


def linear_images(
    subject: ClassifierTrainer,
    *,
    epochs: int = 90,
    lr: float = 1.0,
    optimizer: Literal["lars", "sgd"] = "lars",
    batch_size: int = 4096,
    micro_batch: int = 256,
    weight_decay: float = 0.0,
    workers: int = 8,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Yield ("linear_images/NAME", the set's metric) and ("linear_images/NAME/top5", ...) after the last epoch.

    Args:
        lr: at the peak, for any batch.
        optimizer: lars; sgd needs fewer steps on small sets.
    """
    batch = subject.batch_size(batch_size)
    plan = ClassifierPlan(
        epochs=epochs,
        lr=lr,
        batch_size=batch,
        micro_batch=min(micro_batch, batch),
        optimizer=optimizer,
        weight_decay=weight_decay,
        frozen=True,
        workers=workers,
        seed=seed,
    )
    trained = subject.train(plan, "linear")
    scores, labels = trained.scores(subject.task.test)
    yield from metric_values("linear_images", subject.task, scores, labels)


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


def finetune(
    subject: ClassifierTrainer,
    *,
    epochs: int = 100,
    lr: float = 0.0,
    batch_size: int = 1024,
    micro_batch: int = 128,
    image_size: int = 0,
    layer_decay: float = 1.0,
    drop_path: float = 0.1,
    label_smoothing: float = 0.1,
    workers: int = 8,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Yield ("finetune/NAME", the set's metric) and ("finetune/NAME/top5", ...) after the last epoch.

    Args:
        lr: for a batch of 256 (ResNet) or 512 (vision transformer); 0 means 0.1 and 5e-4.
        image_size: side of the input in pixels, such as 384; 0: the encoder's input size.
        layer_decay: rate of each layer relative to the next later layer.
        seed: of order, crops and the classifier's weights.
    """
    convolutional = is_convolutional(subject.encoder.backbone)
    batch = subject.batch_size(batch_size)
    if convolutional:
        rate, unit, plan = lr or 0.1, 256, {"optimizer": "sgd", "weight_decay": 1e-4}
    else:
        rate, unit = lr or 5e-4, 512
        plan = {"optimizer": "adamw", "weight_decay": 0.05, "augmentation": "deit", "label_smoothing": label_smoothing}
    trained = subject.train(
        ClassifierPlan(
            epochs=epochs,
            lr=rate * batch / unit,
            batch_size=batch,
            micro_batch=min(micro_batch, batch),
            warmup_epochs=min(5.0, epochs / 10),
            layer_decay=layer_decay,
            workers=workers,
            seed=seed,
            **plan,  # type: ignore[arg-type]
        ),
        "finetune",
        image_size=image_size,
        drop_path=0.0 if convolutional else drop_path,
    )
    scores, labels = trained.scores(subject.task.test)
    found = dict(metric_values("finetune", subject.task, scores, labels))
    yield from found.items()
    folder = subject.folder / f"{subject.task.name}-finetuned-{trained.hash}"
    start = subject.encoder
    about: dict[str, Any] = {"recipe": "finetune", "method": f"fine-tuned from {start.name}"}
    about |= {"epochs": epochs, "seed": seed}
    if not start.name.startswith("random:"):
        about["parents"] = [parent_record(start.name, start)]
    network = trained.network
    export_model(
        network.backbone,
        folder,
        architecture=network.architecture,
        model_args=network.model_args,
        preprocessing=network.preprocessing,
        provenance={**about, "metrics": {name: round(value, 4) for name, value in found.items()}},
        graph=False,
    )
    subject.made.append(folder)
    subject.console.print(f"the fine-tuned encoder is in {folder}", highlight=False)
