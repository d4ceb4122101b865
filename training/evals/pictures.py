"""Labeled files as batches of augmented images: decoded by this library, cropped by timm, in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from timm.data import Mixup, create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.encoder.preprocess import Preprocessing
from nnclr_hub.errors import ImageError

from .plan import Plan
from .task import Part


class Images(Dataset[tuple[Tensor | None, int, str, str]]):
    """(tensor, label, path, "") of each file, or (None, label, path, why it cannot be read)."""

    def __init__(self, part: Part, transform: Callable[[Any], Tensor]) -> None:
        self.part, self.transform = part, transform

    def __len__(self) -> int:
        return len(self.part.paths)

    def __getitem__(self, index: int) -> tuple[Tensor | None, int, str, str]:
        path, label = self.part.paths[index], int(self.part.labels[index])
        try:
            return self.transform(decode_image(path)), label, str(path), ""
        except ImageError as error:
            return None, label, str(path), str(error)


def image_loader(part: Part, preprocessing: Preprocessing, plan: Plan) -> DataLoader[Any]:
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
        Images(part, transform),  # type: ignore[arg-type]
        plan.micro_batch,
        shuffle=True,
        num_workers=min(plan.workers, os.cpu_count() or 1),
        collate_fn=list,
        drop_last=not plan.frozen and len(part.paths) > plan.micro_batch,  # batch norm wants more than a left-over
        worker_init_fn=_one_thread,
    )


def _one_thread(worker: int) -> None:
    torch.set_num_threads(1)


def in_batches(
    loader: DataLoader[Any], per_epoch: int, mixup: Mixup | None, broken: dict[str, str]
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """One epoch: at most `per_epoch` lists of (images, labels)."""
    steps = iter(np.linspace(0, len(loader), per_epoch + 1)[1:].round().astype(int))
    until, chunks = next(steps), []
    for number, items in enumerate(loader, 1):
        broken.update({path: reason for x, _, path, reason in items if x is None})
        good = [(x, label) for x, label, _, _ in items if x is not None]
        if mixup is not None and len(good) % 2:
            good = good[:-1]  # it works on pairs
        if good:
            x, y = torch.stack([x for x, _ in good]), torch.tensor([label for _, label in good])
            chunks.append(mixup(x, y) if mixup is not None else (x, y))
        if number >= until:
            if chunks:
                yield chunks
            until, chunks = next(steps, len(loader) + 1), []
