"""The views of each augmentation, as parameters; `augment.py` makes them. It needs no torch, so recipes can be listed
without it.

AUGMENTATIONS holds the two large views of each augmentation:

- `byol` is the pair that the paper adopts from BYOL: random crop and flip, color jitter in random order, grayscale,
  blur always in one view and rarely in the other, solarization in the other.
- `crop_only` is random crops alone ("Data Augmentation", section 4.4).
- `simclr` has stronger color jitter, and blurs each view half of the time.
- `cifar` is `byol` without blur, for images of 32 pixels.
- `keep_color` is `byol` without its changes of color (saturation, hue, grayscale, solarization), for images whose
  classes differ in color. Not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class View:
    """Parameters of one view; probabilities are in [0, 1].

    size: side of the result in pixels.
    scale: share of the image's area that a crop covers.
    ratio: its width / height.
    brightness, contrast, saturation: the factor is sampled from [1 - x, 1 + x], but not below 0.
    hue: the shift is sampled from [-x, x].
    sigma: standard deviation of the blur in pixels; the length of its kernel depends on the size, see `blur_taps`.
    operation: a further one, called last with the pixels, (B, 3, size, size) float32 in [0, 1], and the generator;
        it returns pixels of the same shape.
    mean, std: for normalizing the finished view, of values in [0, 1].
    """

    size: int = 224
    scale: tuple[float, ...] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1
    gray: float = 0.2
    blur: float = 1.0
    sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0
    operation: Callable[[Tensor, Generator], Tensor] | None = None
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


_CROP = View(flip=0.0, jitter=0.0, gray=0.0, blur=0.0)
_COLORED = View(saturation=0.0, hue=0.0, gray=0.0)
_SIMCLR = View(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5)

AUGMENTATIONS: dict[str, tuple[View, View]] = {
    "byol": (View(), View(blur=0.1, solarize=0.2)),
    "crop_only": (_CROP, _CROP),
    "simclr": (_SIMCLR, _SIMCLR),
    "cifar": (View(blur=0.0), View(blur=0.0, solarize=0.2)),
    "keep_color": (_COLORED, replace(_COLORED, blur=0.1)),
}
