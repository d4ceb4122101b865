"""A plug-in: how the starters in weights/ were trained on several small sets together.

    nnclr pretrain small --plugin examples/starters.py --set augmentation=degraded --set batches=by_folder \
        --data imagenette128 --data mix128 --data clothing160 --data grocery128 --out RUN

Sets differ in sharpness and compression, by which InfoNCE could tell a positive from most negatives. Therefore some
views are shrunk and compressed (`degraded`), and most of a batch comes from one folder (`by_folder`). LEAST_CROP and
KEEP_COLOR give the views of some folders larger crops, or keep their colors; change them for other data.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Generator, Tensor

from nnclr_hub.cli.programs import load_program

AUGMENTATIONS = load_program("training", "data.views").AUGMENTATIONS
augment = load_program("training", "data.augment")
batches = load_program("training", "data.batches")

ONE_FOLDER = 0.75  # share of a batch that comes from one folder, as long as it has images
LEAST_CROP: Sequence[float] = (0.2, 0.4, 0.6, 0.0)  # least area of a large crop, for each --data; 0: that of the view
KEEP_COLOR: Sequence[float] = (0.0, 0.0, 0.0, 1.0)  # share of the batches whose views keep their colors
DEGRADED = 0.3  # share of the views
SHRINK = (0.35, 1.0)  # side of the small copy, as a share of the image's
QUALITY = (20.0, 90.0)  # of JPEG
BLOCK = 8
# JPEG's example table for luminance (ITU-T T.81, table K.1), used here for all channels
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)


class ByFolder(batches.Batches):
    """Batches that come mostly from one folder, with views that depend on the folder."""

    def draw(self, step: int):
        """Return the images and the random numbers of a step."""
        drawn = super().draw(step)
        rows = self._rows(step)
        folder = np.searchsorted(np.cumsum(self.folders), rows, side="right")
        least, colored = (np.resize(np.array(one), len(self.folders))[folder] for one in (LEAST_CROP, KEEP_COLOR))
        numbers = drawn.numbers
        # one decision per batch, so that color does not tell an image from its negatives
        kept = torch.from_numpy(colored > float(numbers[0, 0, augment.OWN]))
        numbers[:, kept, augment.SATURATION_AND_HUE] = 0.5  # a factor of 1, a shift of 0
        numbers[:, kept, augment.GRAY] = numbers[:, kept, augment.SOLARIZE] = 1.0  # not below any probability
        for number, view in zip(numbers, drawn.views, strict=True):
            low, high = view.scale
            if view.size == drawn.views[0].size and low < high:
                start = torch.from_numpy(((least - low) / (high - low)).clip(0, 1)).float()[:, None]
                area = slice(0, augment.FLIP // 2 - 1)  # the numbers of the areas
                number[:, area] = start + (1 - start) * number[:, area]
        return replace(drawn, rows=rows)

    def _rows(self, step: int) -> np.ndarray:
        """Return the rows of a step for this process; the largest share of them from one folder."""
        epoch, place = divmod(step, self.steps_per_epoch)
        own = round(ONE_FOLDER * self.batch_size)
        shuffled = [
            start + batches.Permutation(int(count), self.seed, epoch, 3, number)(np.arange(count))
            for number, (start, count) in enumerate(
                zip(np.cumsum(self.folders) - self.folders, self.folders, strict=True)
            )
        ]
        heads = [one[: len(one) // self.batch_size * own].reshape(-1, own) for one in shuffled]
        rest = np.concatenate([one[head.size :] for one, head in zip(shuffled, heads, strict=True)])
        rest = rest[batches.Permutation(len(rest), self.seed, epoch, 2)(np.arange(len(rest)))]
        every = [row for head in heads for row in head]
        number = int(batches.Permutation(self.steps_per_epoch, self.seed, epoch, 1)(np.array([place]))[0])
        start = min(number, len(every)) * (self.batch_size - own) + max(0, number - len(every)) * self.batch_size
        head = every[number] if number < len(every) else rest[:0]
        return np.concatenate([head, rest[start : start + self.batch_size - len(head)]])[self.part]


def degrade(images: Tensor, generator: Generator) -> Tensor:
    """Shrink and compress some of (B, C, S, S) images in [0, 1], each by a different amount."""
    chosen, shrink, quality = torch.rand(3, len(images), generator=generator).to(images.device)
    low, high = QUALITY
    worse = jpeg_like(
        shrink_and_enlarge(images, SHRINK[0] + (SHRINK[1] - SHRINK[0]) * shrink), low + (high - low) * quality
    )
    return torch.where((chosen < DEGRADED)[:, None, None, None], worse, images)


def shrink_and_enlarge(images: Tensor, share: Tensor) -> Tensor:
    """Resize to `share` (B,) of the side by area and back bilinearly. Both are linear: one matrix per image."""
    side = images.shape[-1]
    small = (side * share).round().clamp(min=2)[:, None, None]  # pixels of the small copy
    pixel = torch.arange(side, device=images.device)
    row, column = pixel[None, :, None], pixel[None, None, :]
    cell = side / small
    # overlap of source pixel `column` with cell `row` of the small copy
    down = (torch.minimum((row + 1) * cell, column + 1) - torch.maximum(row * cell, column)).clamp(min=0) / cell
    # position of pixel `row` of the result between the centers of the small copy
    place = ((row + 0.5) / cell - 0.5).clamp(min=0)
    up = (1 - (torch.minimum(place, small - 1) - column).abs()).clamp(min=0)
    matrix = (up @ down)[:, None]  # (B, 1, side, side)
    return matrix @ images @ matrix.mT


def jpeg_like(images: Tensor, quality: Tensor) -> Tensor:
    """Round the cosine transform of 8 x 8 blocks as JPEG does at a quality (B,) from 1 to 100, without subsampling."""
    batch, channels, side, _ = images.shape
    padded = math.ceil(side / BLOCK) * BLOCK
    x = torch.nn.functional.pad(images, (0, padded - side, 0, padded - side), mode="replicate") * 255 - 128
    x = x.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).transpose(3, 4)  # (B, C, rows, columns, 8, 8)
    k, n = torch.arange(BLOCK, device=x.device)[:, None], torch.arange(BLOCK, device=x.device)[None]
    cosines = (math.pi * (2 * n + 1) * k / (2 * BLOCK)).cos() * math.sqrt(2 / BLOCK)
    cosines[0] /= math.sqrt(2)  # orthonormal
    scale = torch.where(quality < 50, 50 / quality, 2 - quality / 50)[:, None, None]
    steps = (torch.tensor(LUMINANCE, device=x.device) * scale).clamp(min=1)[:, None, None, None]
    x = ((cosines @ x @ cosines.T) / steps).round() * steps
    x = (cosines.T @ x @ cosines).transpose(3, 4).reshape(batch, channels, padded, padded)
    return ((x + 128) / 255).clamp(0, 1)[..., :side, :side]


first, second = AUGMENTATIONS["byol"]
AUGMENTATIONS["degraded"] = (replace(first, operation=degrade), replace(second, operation=degrade))
batches.BATCHES["by_folder"] = ByFolder
