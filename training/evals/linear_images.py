"""Linear evaluation as in the paper: a linear classifier on the frozen encoder, trained through images.

90 epochs of LARS with Nesterov momentum 0.9, a cosine schedule from a learning rate of 1, batches of 4096, random crops
and flips. A batch consists of parts that fit into memory.

A small set uses smaller batches to get enough steps. The rate stays 1, since the length of LARS's steps is a fixed
share of the weights' length for any batch. (The paper does not state whether its rate of 1 is meant for its batch or
for 256 images.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .supervised import ClassifierPlan
from .task import metric_values
from .trainer import ClassifierTrainer


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
        batch_size: images per step; shrinks so that an epoch has 32 steps.
        micro_batch: images per pass of the network.
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
