"""What the protocols that train through images work on: an encoder, a task, and a place for what they make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.progress import bar

from .network import Network, network_of
from .plan import Plan
from .supervised import Classifier, logits, train_classifier
from .task import Part, Task

CHUNK = 512


@dataclass(frozen=True)
class Trained:
    """A trained classifier.

    network: its backbone, as it has become.
    model: both.
    subject: what it was trained for.
    hash: of the plan and the images.
    """

    network: Network
    model: Classifier
    subject: Subject
    hash: str

    def scores(self, part: Part, name: str = "test") -> tuple[np.ndarray, np.ndarray]:
        """(N, C) float32 logits of the center crops, and the (N,) labels, of the images that can be read.

        Raises:
            NoImages: there are none.
        """
        encoder = self.network.encoder("trained", self.subject.where)
        rows, kept = [], []
        with bar(self.subject.say, f"scoring {self.subject.task.name}/{name}") as advance:
            for start in range(0, len(part.paths), CHUNK):
                for index, result in enumerate(encoder.features_each(part.paths[start : start + CHUNK]), start):
                    if isinstance(result, ImageError):
                        self.subject.broken[str(part.paths[index])] = str(result)
                    else:
                        rows.append(result)
                        kept.append(index)
                advance(min(start + CHUNK, len(part.paths)), len(part.paths))
        if not rows:
            raise NoImages(f"Not one image of {self.subject.task.name}/{name} can be read.")
        return logits(self.model, np.stack(rows)), part.labels[kept]


@dataclass(frozen=True)
class Subject:
    """An encoder on a data set.

    place: folder for checkpoints, and for the networks that a protocol makes.
    where: the device.
    say: where progress is shown.
    broken: files that could not be read, with the reason; filled on the way.
    made: model folders that a protocol has written; likewise.
    """

    encoder: Encoder
    task: Task
    place: Path
    where: torch.device
    say: Console
    broken: dict[str, str] = field(default_factory=dict)
    made: list[Path] = field(default_factory=list)

    def batch(self, wanted: int, part: Part | None = None) -> int:
        """Images a step: as many as wanted, but in an epoch at least 32 steps, or steps of 8."""
        return min(wanted, max(8, len((part or self.task.train).paths) // 32))

    def train(
        self, plan: Plan, title: str, *, part: Part | None = None, image_size: int = 0, drop_path: float = 0.0
    ) -> Trained:
        """A classifier on the training part, or on another one, from the encoder's own weights.

        Raises:
            InvalidRequest: several labels an image.
        """
        part = part or self.task.train
        require_one_label(self.task, title)
        network = network_of(self.encoder, image_size=image_size, drop_path=drop_path)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            model = Classifier(network.backbone, len(self.task.classes))
        made_of = {"plan": asdict(plan), "size": image_size, "drop_path": drop_path, "part": _digest(part)}
        plan_hash = _short(made_of)
        place = self.place / f"{title}-{plan_hash}"
        broken = train_classifier(
            model, part, network.preprocessing, plan, self.where, place, self.say, f"{title} on {self.task.name}"
        )
        self.broken.update(broken)
        return Trained(network, model, self, plan_hash)


def require_one_label(task: Task, title: str) -> None:
    """Raises InvalidRequest for images with several labels."""
    if task.train.labels.ndim == 2:
        raise InvalidRequest(f"{title} learns one label an image, and those of {task.name} have several: use linear.")


def _digest(part: Part) -> str:
    digest = hashlib.sha256(part.labels.tobytes())
    digest.update("\n".join(map(str, part.paths)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _short(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
