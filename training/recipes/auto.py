"""`auto`: a recipe that adapts to the number of images and the device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .imagenet import BEST
from .preset import Preset
from .recipe import Recipe
from .small import CIFAR10_RESNET18, SMALL, SMALL_CPU

TINY = 40  # pixels of the short side up to which a stem for photographs loses nearly everything
SOME = 20_000  # images from which a ResNet-50 is worth its cost
MANY = 200_000  # images from which the paper's recipe fits
STEPS = 20_000  # for a small set on a GPU


@dataclass(frozen=True, kw_only=True)
class Auto(Recipe):
    """Select network, size of the views and epochs from the number of images and the device."""

    def for_data(self, images: int, side: int, on_gpu: bool) -> Recipe:
        """Return the recipe for a number of images, of a typical short side in pixels."""
        if not on_gpu:
            size = 32 if side <= TINY else 48
            epochs = _epochs(images, 256, 3000, most=100)
            chosen = dataclasses.replace(SMALL_CPU, epochs=epochs, image_size=size, eval_size=size)
        elif side <= TINY:
            chosen = dataclasses.replace(CIFAR10_RESNET18, epochs=_epochs(images, 512, STEPS, most=800))
        elif images < SOME:
            chosen = dataclasses.replace(SMALL, epochs=_epochs(images, 512, STEPS, most=800))
        elif images < MANY:
            chosen = dataclasses.replace(
                SMALL,
                backbone="resnet50",
                image_size=160,
                eval_size=160,
                pack_size=192,
                queue_size=32_768,
                epochs=_epochs(images, 512, 2 * STEPS, most=400),
            )
        else:
            chosen = dataclasses.replace(BEST, batch_size=1024, chunk=256, epochs=100, base_lr=0.4)
        return dataclasses.replace(chosen, **{name: getattr(self, name) for name in self.fixed}, fixed=self.fixed)


def _epochs(images: int, batch: int, steps: int, most: int) -> int:
    """Return the number of epochs with about `steps` steps, but at most `most`."""
    return max(1, min(most, steps * batch // max(images, batch)))


AUTO = Preset(
    recipe=Auto(),
    summary="Select network, size of the views and epochs from the number of images and the device.",
    hardware="a CPU or a GPU.",
    time="estimate: 20 minutes to an hour for a few thousand images.",
    expected="depends on the images; RUN/report.html shows whether the run learned anything.",
    notes="On a CPU it is `small_cpu`. On a GPU it is a ResNet-18 at 128 pixels, from 20,000 images on a ResNet-50 at "
    "160, and from 200,000 on the paper's recipe at 224. Images of at most 40 pixels get the ResNet-18 with a CIFAR "
    "stem. Values given with --set are kept. The other values that --settings shows are the paper's, and `auto` "
    "replaces them.",
)
