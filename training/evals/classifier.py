"""Train a classifier from an encoder on labeled files, for the protocols that train through images.

With a frozen backbone it is linear evaluation, otherwise fine-tuning. The network is copied for each training, and can
be exported afterwards. Every epoch writes a checkpoint, so the same call continues after an interruption.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from timm.data import Mixup, create_transform
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.backbones import create_backbone, load_state, sized
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.network_output import vector_length
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import ImageError, InvalidRequest, NoImages, TrainingDiverged
from nnclr_hub.hub.sources import split_appended
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.progress import bar

from ..assemble import choose_precision
from ..checkpoint import load_checkpoint, save_checkpoint
from ..interrupt import Interrupted, stop_signals
from ..optimization import cosine, optimizer_of
from .task import Part, Task

CHUNK = 512


@dataclass(frozen=True)
class ClassifierPlan:
    """Hyperparameters for training a classifier.

    lr: peak learning rate for a whole batch.
    batch_size: images per step; `micro_batch` of them pass the network together.
    augmentation: "crop" is random crops and flips; "deit" adds RandAugment, mixup, cutmix and erasing.
    frozen: train only the head; the backbone stays in evaluation mode.
    """

    epochs: int
    lr: float
    batch_size: int
    micro_batch: int
    optimizer: Literal["lars", "sgd", "adamw"]
    weight_decay: float = 0.0
    warmup_epochs: float = 0.0
    augmentation: Literal["crop", "deit"] = "crop"
    label_smoothing: float = 0.0
    layer_decay: float = 1.0
    frozen: bool = False
    workers: int = 2
    seed: int = 0


class Classifier(nn.Module):
    """Backbone and linear head: (B, 3, S, S) -> (B, C) logits."""

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(vector_length(backbone), classes)
        nn.init.zeros_(self.head.bias)
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x).float())


def _train(
    model: Classifier,
    part: Part,
    preprocessing: Preprocessing,
    plan: ClassifierPlan,
    where: torch.device,
    folder: Path,
    console: Console,
    title: str,
) -> list[tuple[str, str]]:
    """Train the model in place, until it is in evaluation mode; return the unreadable files with the reason."""
    model.to(where)
    folder.mkdir(parents=True, exist_ok=True)
    per_epoch = max(1, round(len(part.paths) / plan.batch_size))
    optimizer = _optimizer(model, plan)
    schedule = cosine(optimizer, plan.epochs * per_epoch, round(plan.warmup_epochs * per_epoch))
    epoch, broken = 0, {}
    saved = load_checkpoint(folder)
    if saved is not None:
        model.load_state_dict(saved["model"])
        if saved["optimizer"] is not None:
            optimizer.load_state_dict(saved["optimizer"])
        epoch, broken = saved["epoch"], dict(saved["broken"])
    loader = image_loader(part, preprocessing, plan)
    mixup = None
    if plan.augmentation == "deit":
        mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=model.head.out_features)
    bf16 = choose_precision("auto", where) == "bf16"
    with stop_signals() as stop, bar(console, title) as advance:
        while epoch < plan.epochs:
            _seed(plan.seed * 100_003 + epoch)
            model.train()
            if plan.frozen:
                model.backbone.eval()
            seen = 0
            for step, chunks in enumerate(in_batches(loader, per_epoch, mixup, broken)):
                schedule.step_update(epoch * per_epoch + step)
                _step(model, optimizer, chunks, plan, where, bf16)
                seen += sum(len(x) for x, _ in chunks)
                advance(epoch * len(part.paths) + seen, plan.epochs * len(part.paths))
                if stop.is_set():
                    raise Interrupted(
                        f"Stopped in epoch {epoch + 1} of {plan.epochs}; the same command continues with that epoch."
                    )
            if not seen:
                raise NoImages(f"None of the {len(part.paths)} images can be read; the first is {part.paths[0]}.")
            epoch += 1
            resumable = optimizer.state_dict() if epoch < plan.epochs else None  # the last one is only for its weights
            state = {"model": model.state_dict(), "optimizer": resumable, "epoch": epoch}
            save_checkpoint(folder, {**state, "broken": list(broken.items())})
    model.eval()
    return sorted(broken.items())


@torch.no_grad()
def logits(model: Classifier, features: np.ndarray) -> np.ndarray:
    """Apply the head to raw features: (N, D) -> (N, C) float32."""
    weight, bias = model.head.weight.detach().cpu(), model.head.bias.detach().cpu()
    return (torch.from_numpy(np.asarray(features)) @ weight.T + bias).numpy()


# ------------------------------------------------------------------------------ images


class Images(Dataset[tuple[Tensor | None, int, str, str]]):
    """Yields (tensor, label, path, "") for each file, or (None, label, path, reason) for an unreadable one."""

    def __init__(self, part: Part, transform: Callable[[Any], Tensor], reading: ImageReading) -> None:
        self.part, self.transform, self.reading = part, transform, reading

    def __len__(self) -> int:
        return len(self.part.paths)

    def __getitem__(self, index: int) -> tuple[Tensor | None, int, str, str]:
        path, label = self.part.paths[index], int(self.part.labels[index])
        try:
            return self.transform(decode_image(path, self.reading)), label, str(path), ""
        except ImageError as error:
            return None, label, str(path), str(error)


def image_loader(part: Part, preprocessing: Preprocessing, plan: ClassifierPlan) -> DataLoader[Any]:
    """Create a loader that decodes images with this library and augments them with timm, in worker processes."""
    deit = plan.augmentation == "deit"
    transform = create_transform(
        preprocessing.input_size,
        is_training=True,
        scale=(0.08, 1.0),
        color_jitter=0.0,
        auto_augment="rand-m9-mstd0.5-inc1" if deit else None,
        re_prob=0.25 if deit else 0.0,
        re_mode="pixel",
        interpolation=preprocessing.interpolation,
        mean=preprocessing.mean,
        std=preprocessing.std,
    )
    return DataLoader(
        Images(part, transform, preprocessing.reading),  # type: ignore[arg-type]
        plan.micro_batch,
        shuffle=True,
        num_workers=min(plan.workers, usable_cores()),
        collate_fn=list,
        drop_last=not plan.frozen
        and len(part.paths) > plan.micro_batch,  # batch norm needs more than a small remainder
        worker_init_fn=_one_thread,
    )


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)


def in_batches(
    loader: DataLoader[Any], per_epoch: int, mixup: Mixup | None, broken: dict[str, str]
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Yield one epoch: at most `per_epoch` lists of (images, labels)."""
    steps = iter(np.linspace(0, len(loader), per_epoch + 1)[1:].round().astype(int))
    until, chunks = next(steps), []
    for number, items in enumerate(loader, 1):
        broken.update({path: reason for x, _, path, reason in items if x is None})
        good = [(x, label) for x, label, _, _ in items if x is not None]
        if mixup is not None and len(good) % 2:
            good = good[:-1]  # mixup pairs images
        if good:
            x, y = torch.stack([x for x, _ in good]), torch.tensor([label for _, label in good])
            chunks.append(mixup(x, y) if mixup is not None else (x, y))
        if number >= until:
            if chunks:
                yield chunks
            until, chunks = next(steps, len(loader) + 1), []


# ------------------------------------------------------------------------------ optimizer step


def _step(
    model: Classifier,
    optimizer: torch.optim.Optimizer,
    chunks: list[tuple[Tensor, Tensor]],
    plan: ClassifierPlan,
    where: torch.device,
    bf16: bool,
) -> None:
    """Run one optimizer step over a batch in chunks; labels are classes, or probabilities of classes."""
    total = sum(len(x) for x, _ in chunks)
    optimizer.zero_grad()
    for x, y in chunks:
        with (
            torch.autocast(where.type, torch.bfloat16, enabled=bf16),
            torch.no_grad() if plan.frozen else nullcontext(),
        ):
            features = model.backbone(x.to(where, non_blocking=True))
        loss = F.cross_entropy(model.head(features.float()), y.to(where), label_smoothing=plan.label_smoothing)
        if not loss.isfinite():
            raise TrainingDiverged("The loss became NaN or infinite; lower the learning rate with --set lr=...")
        (loss * (len(x) / total)).backward()
    optimizer.step()


def _seed(seed: int) -> None:
    """Seed torch (order and workers), numpy (timm's mixup) and random (timm's crops in this process)."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _optimizer(model: Classifier, plan: ClassifierPlan) -> torch.optim.Optimizer:
    """Create the optimizer; biases, norms, positions and [CLS] neither decay nor adapt.

    timm's LARS does not adapt tensors without decay; `always_adapt` makes it adapt the head's weight all the same.
    """
    if plan.frozen:
        groups: Any = [
            {"params": [model.head.weight], "weight_decay": plan.weight_decay, "always_adapt": True},
            {"params": [model.head.bias], "weight_decay": 0.0, "always_adapt": False},
        ]
    elif plan.layer_decay < 1:
        skip = tuple(getattr(model.backbone, "no_weight_decay", set)())
        groups = param_groups_layer_decay(
            model.backbone, plan.weight_decay, no_weight_decay_list=skip, layer_decay=plan.layer_decay
        )
        groups.append({"params": list(model.head.parameters()), "weight_decay": plan.weight_decay})
    else:
        skip = {f"backbone.{name}" for name in getattr(model.backbone, "no_weight_decay", set)()}
        decays = {name: p.ndim > 1 and name not in skip for name, p in model.named_parameters()}
        groups = [
            {"params": [p for name, p in model.named_parameters() if decays[name]], "weight_decay": plan.weight_decay},
            {"params": [p for name, p in model.named_parameters() if not decays[name]], "weight_decay": 0.0},
        ]
    return optimizer_of(plan.optimizer, groups, plan.lr, momentum=0.9, nesterov=True)


# ------------------------------------------------------------------------------ from an encoder


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
            Interrupted: a signal stopped it; completed epochs are kept.
            TrainingDiverged: the loss became NaN or infinite.
            NoImages: no image is readable.
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
        shown = f"{title} on {self.task.name}"
        broken = _train(model, part, network.preprocessing, plan, self.where, folder, self.console, shown)
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
