"""Views of images in memory, for tests of the augmentation."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator, Tensor

from training.data.augment import Change, StoredImages, copy_boxes, make_views, sample_numbers
from training.data.views import View


def stored(images: Tensor, filled: np.ndarray, sizes: np.ndarray, views: Sequence[View], numbers: Tensor):
    """Return copies (B, H, W, C) that fill (B, 2) pixels, of originals of these sizes (B, 2), with boxes of views."""
    boxes = [copy_boxes(sizes, filled, view, own) for view, own in zip(views, numbers, strict=True)]
    return StoredImages(images, torch.stack(boxes).to(images.device, non_blocking=True), sizes)


def squashed(images: Tensor, aspect: Tensor, views: Sequence[View], numbers: Tensor) -> StoredImages:
    """Return images (B, H, W, C) that fill the array, squashed from originals of an aspect (B,) width / height."""
    high, wide = images.shape[1:3]
    sizes = np.stack([np.full(len(aspect), float(high)), high * aspect.double().numpy()], axis=1)
    sizes *= np.maximum(1.0, wide / sizes[:, 1:])  # no side below one pixel
    return stored(images, np.broadcast_to(np.array([high, wide], np.float64), sizes.shape), sizes, views, numbers)


def make_view(images: Tensor, aspect: Tensor, view: View, generator: Generator, change: Change | None = None) -> Tensor:
    """Make one view of each image of (B, H, W, C), which are squashed copies of originals of an aspect (B,)."""
    numbers = sample_numbers(1, len(images), generator)
    return make_views(squashed(images, aspect, [view], numbers), [view], numbers, change=change)[0]
