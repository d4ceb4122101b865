"""Linear evaluation as the paper does it: a linear classifier on the frozen encoder, trained through images.

90 epochs of LARS with Nesterov momentum of 0.9 and a cosine from a learning rate of 1, batches of 4096, random crops
and flips. A batch is gathered from parts that fit into memory.

A small set has smaller batches, so that there are steps enough; the rate stays 1, since LARS takes steps of a
thousandth of the weights' own length whatever the batch. (The paper does not say whether its 1 is meant for its own
batch or for 256 images.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from .merit import merits
from .plan import Plan
from .subject import Subject


def linear_images(
    subject: Subject,
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
    """Yields ("linear_images/NAME", the set's metric) and ("linear_images/NAME/top5", ...) after the last epoch.

    Args:
        subject: encoder and task.
        epochs: passes over the training images.
        lr: at the peak, for any batch.
        optimizer: lars; sgd fits small sets in fewer steps.
        batch_size: images a step; shrinks so that an epoch has 32 steps.
        micro_batch: images at a time through the network.
        weight_decay: of the classifier.
        workers: processes that make the crops.
        seed: of order and crops.
    """
    batch = subject.batch(batch_size)
    plan = Plan(
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
    yield from merits("linear_images", subject.task, scores, labels)
