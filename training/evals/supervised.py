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
The network is copied for each training. Every epoch writes a checkpoint, so the same call continues after an
interruption.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from timm.data import Mixup, create_transform
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from nnclr_hub.cores import usable_cores
from nnclr_hub.encoder.backbones import create_backbone, is_convolutional, load_state, sized
from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.encoder.network_output import vector_length
from nnclr_hub.encoder.preprocessing import Preprocessing
from nnclr_hub.errors import ImageError, InvalidRequest, NoImages, TrainingDiverged
from nnclr_hub.hub.sources import split_appended
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.reading import ImageReading
from nnclr_hub.plural import counted
from nnclr_hub.progress import bar
from nnclr_hub.publish.export import export_model
from nnclr_hub.publish.provenance import parent_record

from ..checkpoint import load_checkpoint, save_checkpoint
from ..cpu import choose_precision
from ..interrupt import Interrupted, stop_signals
from ..optimization import Groups, backbone_groups, by_decay, cosine, optimizer_of
from .features import metric_values, require_single_label
from .task import Part, Task

CHUNK = 512
RATES = (0.01, 0.02, 0.05, 0.1, 0.005)  # for 256 images a step
EPOCHS = (30, 50)
Scores = Iterator[tuple[str, float]]


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


# ------------------------------------------------------------------------------ protocols


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
) -> Scores:
    """Yield ("linear_images/NAME", the set's metric) and ("linear_images/NAME/top5", ...) after the last epoch.

    Args:
        lr: at the peak, for any batch.
        optimizer: lars; sgd needs fewer steps on small sets.
    """
    batch = subject.batch_size(batch_size)
    plan = {"weight_decay": weight_decay, "frozen": True, "workers": workers, "seed": seed}
    trained = subject.train(
        ClassifierPlan(epochs, lr, batch, min(micro_batch, batch), optimizer, **plan),  # type: ignore[arg-type]
        "linear",
    )
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
) -> Scores:
    """Yield, for each share, ("semi_supervised/NAME/1%", the set's metric), top-5, and the scores of the trials.

    Args:
        shares: shares of the training images.
        subset: a file list for each share, one file name per line; empty: the same share of each class.
        rates: learning rates to select from, for a batch of 256.
        epochs: numbers of epochs to select from.
    """
    if subset and len(subset) != len(shares):
        raise InvalidRequest(f"subset needs one file list per share; got {len(shares)} shares and {len(subset)} lists.")
    train = subject.task.train
    require_single_label(subject.task, "semi_supervised")
    for number, share in enumerate(shares):
        chosen = _listed(train, Path(subset[number])) if subset else stratified(train.labels, share, seed)
        part = train.keep(chosen)
        val = subject.task.val or train.keep(_rest(train.labels, chosen, seed))
        batch = subject.batch_size(batch_size, part)
        title, name = f"semi_supervised-{100 * share:g}%", f"{subject.task.name}/{100 * share:g}%"

        def train_with(
            rate: float, length: int, batch: int = batch, part: Part = part, title: str = title
        ) -> TrainedClassifier:
            sizes = batch, min(micro_batch, batch)
            plan = ClassifierPlan(length, rate * batch / 256, *sizes, "sgd", workers=workers, seed=seed)
            return subject.train(plan, title, part=part)

        best = (-1.0, rates[0], epochs[0])
        for rate in rates:
            for length in epochs:
                reached = next(metric_values("", subject.task, *train_with(rate, length).scores(val, "val")))[1]
                yield f"semi_supervised/{name}/lr={rate:g},epochs={length}", reached
                best = max(best, (reached, rate, length))
        scores, labels = train_with(*best[1:]).scores(subject.task.test)
        for key, value in metric_values("semi_supervised", subject.task, scores, labels):
            yield key.replace(subject.task.name, name, 1), value


def stratified(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Return positions of a share (above 0, at most 1) of each class, at least one per class, in order."""
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
    if not len(chosen):
        raise InvalidRequest(f"{table} names none of the training images, such as {train.paths[0].name}.")
    if missing := names - {train.paths[i].name for i in chosen}:
        raise InvalidRequest(
            f"{table} names {counted(len(missing), 'file')} outside of the training images, such as {min(missing)}."
        )
    return chosen


def _rest(labels: np.ndarray, chosen: np.ndarray, seed: int) -> np.ndarray:
    rest = np.setdiff1d(np.arange(len(labels)), chosen)
    if not len(rest):
        raise InvalidRequest("The subset contains all training images, so none are left for validation; add a val/.")
    return rest[stratified(labels[rest], 0.2, seed)]


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
) -> Scores:
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
        rate, plan = (lr or 0.1) * batch / 256, {"optimizer": "sgd", "weight_decay": 1e-4}
    else:
        rate, plan = (lr or 5e-4) * batch / 512, {"optimizer": "adamw", "weight_decay": 0.05, "augmentation": "deit"}
        plan["label_smoothing"] = label_smoothing
    plan |= {"warmup_epochs": min(5.0, epochs / 10), "layer_decay": layer_decay, "workers": workers, "seed": seed}
    trained = subject.train(
        ClassifierPlan(epochs, rate, batch, min(micro_batch, batch), **plan),  # type: ignore[arg-type]
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
    about |= {"epochs": epochs, "seed": seed, "metrics": {name: round(value, 4) for name, value in found.items()}}
    if not start.name.startswith("random:"):
        about["parents"] = [parent_record(start.name, start)]
    shape = {"architecture": trained.architecture, "model_args": trained.model_args}
    about_input = {"preprocessing": trained.preprocessing, "provenance": about}
    export_model(trained.model.backbone, folder, **shape, **about_input, graph=False)
    subject.made.append(folder)
    subject.console.print(f"the fine-tuned encoder is in {folder}")


# ------------------------------------------------------------------------------ from an encoder


@dataclass(frozen=True)
class TrainedClassifier:
    """A classifier, with all that an export of its backbone needs.

    model: backbone and head. The backbone is a copy, so the encoder itself does not change.
    architecture, model_args: build the backbone.
    preprocessing: preprocessing of its input images.
    subject: the trainer that makes it.
    hash: hash of the plan and the images.
    """

    model: Classifier
    architecture: str
    model_args: dict[str, Any]
    preprocessing: Preprocessing
    subject: ClassifierTrainer
    hash: str = ""

    def scores(self, part: Part, name: str = "test") -> tuple[np.ndarray, np.ndarray]:
        """Return (N, C) float32 logits of the center crops and the (N,) labels, for the readable images.

        Raises:
            NoImages: no image can be read.
        """
        encoder = Encoder(self.model.backbone, self.preprocessing, name="trained", device=self.subject.where)
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
        weight, bias = (one.detach().cpu() for one in (self.model.head.weight, self.model.head.bias))
        return (torch.from_numpy(np.stack(rows)) @ weight.T + bias).numpy(), part.labels[kept]


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

        Args:
            image_size: side in pixels; 0: the encoder's. A vision transformer's positions are resampled.
        """
        part = part or self.task.train
        require_single_label(self.task, title)
        made = self._untrained(plan, image_size, drop_path)
        labels = hashlib.sha256(part.labels.tobytes())
        labels.update("\n".join(map(str, part.paths)).encode("utf-8", "surrogateescape"))
        key = {"plan": asdict(plan), "size": image_size, "drop_path": drop_path, "part": labels.hexdigest()}
        plan_hash = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
        self._fit(made, part, plan, self.folder / f"{title}-{plan_hash}", f"{title} on {self.task.name}")
        return replace(made, hash=plan_hash)

    def _untrained(self, plan: ClassifierPlan, image_size: int, drop_path: float) -> TrainedClassifier:
        """Copy the encoder's network, optionally for another input size, and add a head."""
        encoder = self.encoder
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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            model = Classifier(backbone, len(self.task.classes))
        return TrainedClassifier(model, architecture, arguments, preprocessing, self)

    def _fit(self, made: TrainedClassifier, part: Part, plan: ClassifierPlan, folder: Path, title: str) -> None:
        """Train in place, until the model is in evaluation mode; checkpoints are in `folder`."""
        model, where = made.model.to(self.where), self.where
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
        loader = image_loader(part, made.preprocessing, plan)
        mixup = None
        if plan.augmentation == "deit":
            mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=model.head.out_features)
        bf16 = choose_precision("auto", where) == "bf16"
        with stop_signals() as stop, bar(self.console, title) as advance:
            while epoch < plan.epochs:
                seed = plan.seed * 100_003 + epoch
                torch.manual_seed(seed)  # order and workers
                np.random.seed(seed % 2**32)  # timm's mixup
                random.seed(seed)  # timm's crops in this process
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
                            f"Stopped in epoch {epoch + 1} of {plan.epochs}; the same command repeats that epoch."
                        )
                if not seen:
                    raise NoImages(f"No image can be read; the first is {part.paths[0]}.")
                epoch += 1
                # the last checkpoint is only for its weights
                resumable = optimizer.state_dict() if epoch < plan.epochs else None
                state = {"model": model.state_dict(), "optimizer": resumable, "epoch": epoch}
                save_checkpoint(folder, {**state, "broken": list(broken.items())})
        model.eval()
        self.broken.update(broken)


# ------------------------------------------------------------------------------ training


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
        # batch norm needs more than a small remainder
        drop_last=not plan.frozen and len(part.paths) > plan.micro_batch,
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


def _optimizer(model: Classifier, plan: ClassifierPlan) -> torch.optim.Optimizer:
    """Create the optimizer; biases, norms, positions and [CLS] neither decay nor adapt.

    timm's LARS does not adapt tensors without decay; `always_adapt` makes it adapt the head's weight all the same.
    """
    if plan.frozen:
        groups: Groups = [
            {"params": [model.head.weight], "weight_decay": plan.weight_decay, "always_adapt": True},
            {"params": [model.head.bias], "weight_decay": 0.0, "always_adapt": False},
        ]
    else:
        groups = backbone_groups(model.backbone, plan.weight_decay, plan.layer_decay)
        groups += by_decay(model.head.parameters(), plan.weight_decay)
    return optimizer_of(plan.optimizer, groups, plan.lr, momentum=0.9, nesterov=True)
