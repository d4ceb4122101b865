"""Train classifiers from an encoder on a task, for the protocols that train through images.

The network of a source is copied for each training, and can be exported as a model folder afterwards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from nnclr_hub.encoder.backbones import create_backbone, load_state, sized
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.hub.sources import split_appended
from nnclr_hub.progress import bar

from .supervised import Classifier, ClassifierPlan, logits, train_classifier
from .task import Part, Task

CHUNK = 512


@dataclass(frozen=True)
class TrainableNetwork:
    """An encoder's backbone with everything that an export needs.

    backbone: a copy for each training, so the encoder itself does not change.
    architecture, model_args: build it.
    preprocessing: of its input images.
    """

    backbone: nn.Module
    architecture: str
    model_args: Mapping[str, Any]
    preprocessing: Preprocessing


def network_of(encoder: Encoder, *, image_size: int = 0, drop_path: float = 0.0) -> TrainableNetwork:
    """Copy an encoder's network, optionally for another input size.

    Args:
        encoder: any.
        image_size: side in pixels; 0: its input size. A vision transformer's positions are resampled.

    Raises:
        InvalidRequest: a network that does not support this size or stochastic depth, or parts that are appended to it.
    """
    if encoder.appended:
        plain = split_appended(encoder.name)[0]
        raise InvalidRequest(f"A network learns without what is appended to its vectors; name {plain} instead.")
    preprocessing = encoder.transform.preprocessing
    if encoder.config is not None:
        architecture, arguments = encoder.config.architecture, dict(encoder.config.model_args)
    else:
        architecture, arguments = str(encoder.backbone.pretrained_cfg["architecture"]), {}  # type: ignore[index]
    extra = {"drop_path_rate": drop_path} if drop_path else {}
    with torch.random.fork_rng(devices=[]):
        backbone = create_backbone(architecture, model_args={**arguments, **extra})
    load_state(backbone, encoder.backbone.state_dict(), encoder.name)
    if image_size and image_size != preprocessing.input_size:
        if sized(architecture):
            if not hasattr(backbone, "set_input_size"):
                size = preprocessing.input_size
                raise InvalidRequest(f"{architecture} supports only an input of {size} pixels; got {image_size}.")
            backbone.set_input_size(img_size=(image_size, image_size))  # type: ignore[operator]
            arguments["img_size"] = image_size
        preprocessing = replace(preprocessing, input_size=image_size)
    return TrainableNetwork(backbone, architecture, arguments, preprocessing)


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier.

    network: its backbone after training.
    model: backbone and head.
    subject: the trainer that made it.
    hash: of the plan and the images.
    """

    network: TrainableNetwork
    model: Classifier
    subject: ClassifierTrainer
    hash: str

    def scores(self, part: Part, name: str = "test") -> tuple[np.ndarray, np.ndarray]:
        """Return (N, C) float32 logits of the center crops and the (N,) labels, for the readable images.

        Raises:
            NoImages: no image can be read.
        """
        encoder = Encoder(self.model.backbone, self.network.preprocessing, name="trained", device=self.subject.where)
        rows, kept = [], []
        with bar(self.subject.console, f"scoring {self.subject.task.name}/{name}") as advance:
            for start in range(0, len(part.paths), CHUNK):
                for index, result in enumerate(encoder.features_each(part.paths[start : start + CHUNK]), start):
                    if isinstance(result, ImageError):
                        self.subject.broken[str(part.paths[index])] = str(result)
                    else:
                        rows.append(result)
                        kept.append(index)
                advance(min(start + CHUNK, len(part.paths)), len(part.paths))
        if not rows:
            raise NoImages(f"No image of {self.subject.task.name}/{name} can be read.")
        return logits(self.model, np.stack(rows)), part.labels[kept]


@dataclass(frozen=True)
class ClassifierTrainer:
    """Trains classifiers from one encoder on one data set.

    folder: for checkpoints, and for the networks that a protocol writes.
    where: the device.
    console: console for progress.
    broken: unreadable files with the reason; filled during training.
    made: model folders that a protocol has written.
    """

    encoder: Encoder
    task: Task
    folder: Path
    where: torch.device
    console: Console
    broken: dict[str, str] = field(default_factory=dict)
    made: list[Path] = field(default_factory=list)

    def batch_size(self, most: int, part: Part | None = None) -> int:
        """Limit the batch so that an epoch has at least 32 steps, but not below 8 images."""
        return min(most, max(8, len((part or self.task.train).paths) // 32))

    def train(
        self, plan: ClassifierPlan, title: str, *, part: Part | None = None, image_size: int = 0, drop_path: float = 0.0
    ) -> TrainedClassifier:
        """Train a classifier from the encoder's weights, on the training part or another part.

        Raises:
            InvalidRequest: several labels per image.
        """
        part = part or self.task.train
        require_single_label(self.task, title)
        network = network_of(self.encoder, image_size=image_size, drop_path=drop_path)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            model = Classifier(network.backbone, len(self.task.classes))
        key = {"plan": asdict(plan), "size": image_size, "drop_path": drop_path, "part": _digest(part)}
        plan_hash = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
        folder = self.folder / f"{title}-{plan_hash}"
        broken = train_classifier(
            model, part, network.preprocessing, plan, self.where, folder, self.console, f"{title} on {self.task.name}"
        )
        self.broken.update(broken)
        return TrainedClassifier(network, model, self, plan_hash)


def require_single_label(task: Task, title: str) -> None:
    """Raise InvalidRequest for images with several labels."""
    if task.train.labels.ndim == 2:
        raise InvalidRequest(f"{title} needs one label per image, and images of {task.name} have several; use linear.")


def _digest(part: Part) -> str:
    digest = hashlib.sha256(part.labels.tobytes())
    digest.update("\n".join(map(str, part.paths)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
