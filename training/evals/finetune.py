"""Supervised training from an encoder's weights ("Self-supervised Learning as a Pre-training Step"): 100 epochs.

A ResNet uses random crops and flips and SGD at 0.1 for 256 images. A vision transformer uses DeiT's recipe:
RandAugment, mixup, cutmix, erasing, label smoothing, stochastic depth, AdamW at 5e-4 for 512. With a `random:` source
the same call trains from scratch. The network is written to OUT/encoders/ as a model folder, which is a source again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nnclr_hub.encoder.backbones import is_convolutional
from nnclr_hub.publish.export import export_model
from nnclr_hub.publish.provenance import parent_record

from .supervised import ClassifierPlan
from .task import metric_values
from .trainer import ClassifierTrainer


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
        batch_size: images per step; shrinks so that an epoch has 32 steps.
        micro_batch: images per pass of the network.
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
    )
    subject.made.append(folder)
    subject.console.print(f"the fine-tuned encoder is in {folder}", highlight=False)
