"""Images per second of CPU time that become two crops of 224 pixels, and the share of a step spent waiting for them.

    python benchmarks/data_engine.py                        # 2,000 generated photos with a short side of 375 pixels
    python benchmarks/data_engine.py --side 1500 --images 300
    python benchmarks/data_engine.py --data PHOTOS

Four ways to feed a run take turns, all with the same number of processes. Each cuts two random crops of an image,
which arrive as uint8 in the memory of the training process:

- originals: this project's decoding processes, which decode an image once and cut from it;
- torchvision: ImageFolder in a DataLoader, with one RandomResizedCrop per view after one decoding;
- packed: this project's pack of decoded copies with a short side of 256 pixels. Its crops are float32, cut by batched
  products, which suit a GPU;
- mapped: decoded copies of the same size in one memory-mapped file, in the way of FFCV's raw mode, cut by Pillow in
  a DataLoader.

CPU time is that of the process and its children, so other work on the machine changes it little. The waiting is
measured in training steps of a narrow ResNet, and next to a pretended device, which takes a multiple of the time that
decoding a batch takes and leaves the processor idle, as a GPU does. Such a device must wait at times even if decoding
is fast enough on average: the last column is what a queue of that length waits if batches take the times that were
measured, in random order.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from training_loop import make_stepper

from training.data.augment import CutViews
from training.data.batches import Batch, Batches, PixelSource
from training.data.datasets import training_files
from training.data.image_index import ImageIndex
from training.data.image_pack import ImagePack, PackedPixels, build_pack
from training.data.order import Order
from training.data.originals import Originals, steps_ahead
from training.recipes import find_recipe
from training.recipes.recipe import Recipe

SIZE, BATCH, PACKED = 224, 64, 256
CPU = torch.device("cpu")
ORIGINALS, TORCHVISION, PACK, MAPPED = "originals", "torchvision", "packed", "mapped"


def write_photos(folder: Path, images: int, side: int) -> None:
    """Write JPEGs of side x 4/3 side, cut from photographs of scikit-image at random places and sizes."""
    from skimage import data

    photos = [Image.fromarray(one()) for one in (data.astronaut, data.chelsea, data.coffee, data.rocket)]
    draws = np.random.default_rng(0)
    for number in range(images):
        photo = photos[number % len(photos)]
        width = int(draws.integers(photo.width // 2, photo.width))
        height = min(photo.height, width * 3 // 4)
        left, top = (int(draws.integers(0, most + 1)) for most in (photo.width - width, photo.height - height))
        part = photo.crop((left, top, left + width, top + height)).resize(
            (side * 4 // 3, side), Image.Resampling.BICUBIC
        )
        grain = draws.normal(0, 6, (side, side * 4 // 3, 1))  # enlarged photos would decode faster than real ones
        place = folder / f"{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = (np.asarray(part) + grain).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{number:06}.jpg", quality=90)


# ------------------------------------------------------------------------------ the four ways


class TwoCrops:
    """Torchvision's random resized crop and flip, twice, to uint8 tensors."""

    def __init__(self) -> None:
        self.crop = v2.Compose(
            [
                v2.RandomResizedCrop(SIZE, (0.08, 1.0), interpolation=v2.InterpolationMode.BICUBIC),
                v2.RandomHorizontalFlip(),
                v2.PILToTensor(),
            ]
        )

    def __call__(self, image: Image.Image) -> list[torch.Tensor]:
        return [self.crop(image), self.crop(image)]


class Mapped(Dataset[list[torch.Tensor]]):
    """Decoded copies in a memory-mapped file."""

    def __init__(self, pack: ImagePack) -> None:
        self.pack, self.crops = pack, TwoCrops()
        self.ends = np.cumsum(pack.stored.prod(axis=1)) * pack.channels

    def __len__(self) -> int:
        return len(self.pack)

    def __getitem__(self, row: int) -> list[torch.Tensor]:
        high, wide = self.pack.stored[row]
        pixels = self.pack.pixels[: self.ends[row]][-high * wide * 3 :].reshape(high, wide, 3)
        return self.crops(Image.fromarray(pixels))


def own_crops(pixels: PixelSource, files: ImageIndex, recipe: Recipe) -> Iterator[object]:
    """Yield the crops of each step."""
    batches = batches_of(pixels, files, recipe)
    try:
        for step in count():
            batch = batches.at(step)
            if isinstance(batch.pixels, CutViews):
                yield batch.pixels.crops
            else:
                pairs = enumerate(zip(batch.views, batch.numbers, strict=True))
                yield [batch.pixels.crop(number, view, numbers) for number, (view, numbers) in pairs]
    finally:
        batches.close()


def batches_of(pixels: PixelSource, files: ImageIndex, recipe: Recipe) -> Batches:
    order = Order(files.folders, recipe.batch_size, 0)
    return Batches(
        pixels, files.labels, order, views=recipe.views_at, batch_size=recipe.batch_size, seed=0, where=CPU
    )  # fmt: skip


def loaded(data: Dataset, workers: int) -> Iterator[object]:
    """Yield batches of a DataLoader without end."""
    while True:
        yield from DataLoader(data, BATCH, shuffle=True, num_workers=workers, drop_last=True)


# ------------------------------------------------------------------------------ measurements


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children, running or ended."""
    ticks, children = 0, {os.getpid()}
    for path in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda one: int(one.parent.name)):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number, parent = int(path.parent.name), int(fields[1])
        if number in children or parent in children:
            children.add(number)
            ticks += sum(map(int, fields[11:13]))
            ticks += sum(map(int, fields[13:15]))  # of its children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def rate(crops: Iterator[object], steps: int, workers: int) -> float:
    """Return images per CPU second over some steps, after those that fill the queues."""
    for _ in range(2 * workers):
        next(crops)
    began = cpu_seconds()
    for _ in range(steps):
        next(crops)
    return steps * BATCH / (cpu_seconds() - began)


def waiting(
    batches: Batches, run: Callable[[Batch, int], object], steps: int, first: int = 1
) -> tuple[float, float, np.ndarray]:
    """Return the share of the time of steps that they wait for images, the seconds of a step, and each wait.

    The first steps are not measured, because the queue is empty before them.
    """
    for step in range(first):
        run(batches.at(step), step)
    times = [time.perf_counter()]
    for step in range(first, first + steps):
        batch = batches.at(step)
        times.append(time.perf_counter())
        run(batch, step)
        times.append(time.perf_counter())
    batches.close()
    took = np.diff(times)
    return took[::2].sum() / took.sum(), took.sum() / steps, took[::2]


def least_waiting(decoding: np.ndarray, pause: float, ahead: int, steps: int = 20_000) -> float:
    """Return the share of its time that a device waits for a queue of `ahead` batches.

    Args:
        decoding: seconds that batches took; each step has one of them at random.
        pause: seconds of the device per batch.
    """
    takes = np.random.default_rng(0).choice(decoding, steps + ahead + 1)
    now, finished = 0.0, [0.0]
    for step in range(steps):
        for one in takes[len(finished) - 1 : step + ahead + 1]:  # begun when the device asks for this step
            finished.append(max(finished[-1], now) + one)
        now = max(now, finished[step + 1]) + pause
    return 1 - steps * pause / now


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--data", type=Path, help="folder of classes of images; default: generated photos")
    arguments.add_argument("--images", type=int, default=1000, help="photos to generate")
    arguments.add_argument("--side", type=int, default=375, help="their short side")
    arguments.add_argument("--steps", type=int, default=12, help="batches of 64 per turn")
    arguments.add_argument("--turns", type=int, default=3)
    arguments.add_argument("--workers", type=int, default=2)
    chosen = arguments.parse_args()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.data or Path(scratch) / "photos"
        if not chosen.data:
            write_photos(folder, chosen.images, chosen.side)
        files = training_files([folder])
        pack = build_pack(files, PACKED, cache=Path(scratch))
        recipe = find_recipe("resnet50_imagenet").with_settings(
            ["backbone=resnet18", "channels=16,32,64,128", "batch_size=64", "queue_size=512", "precision=fp32"]
        )

        ahead = steps_ahead(BATCH * 2 * 3 * SIZE**2)

        def originals() -> Originals:
            replacement = Order(files.folders, BATCH, 0).replacement
            return Originals(files, workers=chosen.workers, replacement=replacement, where=CPU, ahead=ahead)

        ways: dict[str, Callable[[], Iterator[object]]] = {
            ORIGINALS: lambda: own_crops(originals(), files, recipe),
            TORCHVISION: lambda: loaded(ImageFolder(str(folder), TwoCrops()), chosen.workers),
            PACK: lambda: own_crops(PackedPixels(pack, CPU), files, recipe),
            MAPPED: lambda: loaded(Mapped(pack), chosen.workers),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(chosen.turns):
            for name, crops in ways.items():
                fed = crops()
                rates[name].append(rate(fed, chosen.steps, chosen.workers))
                fed.close()  # type: ignore[attr-defined]
        baseline = statistics.median(rates[TORCHVISION])
        print(f"{len(files)} images, two crops of {SIZE} px each, {chosen.workers} processes")
        print("| way | images per CPU second | over torchvision |")
        print("|---|---|---|")
        for name, found in rates.items():
            ratios = [one / base for one, base in zip(found, rates[TORCHVISION], strict=True)]
            middle = statistics.median(found)
            print(f"| {name} | {middle:.0f} | {middle / baseline:.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")
        batches = batches_of(originals(), files, recipe)
        share, seconds, _ = waiting(batches, make_stepper(recipe, batches, CPU)[1].run, 4)
        print(f"steps of a narrow ResNet-18: {seconds:.1f} s, {share:.1%} of it waiting for images")
        _, alone, each = waiting(batches_of(originals(), files, recipe), lambda batch, step: None, 4 * chosen.steps)
        print(f"a batch is decoded in {alone:.2f} s; standard deviation {each.std() / alone:.0%}; {ahead} steps ahead")
        print("| a device takes, per batch | share of the time that it waits | in the model |")
        print("|---|---|---|")
        for factor in (0.5, 1.0, 1.25, 1.5, 2.0):
            pause = factor * alone
            share, *_ = waiting(
                batches_of(originals(), files, recipe), lambda batch, step, pause=pause: time.sleep(pause),
                4 * chosen.steps, first=ahead,
            )  # fmt: skip
            print(f"| {factor:g} of the time of decoding it | {share:.1%} | {least_waiting(each, pause, ahead):.1%} |")


if __name__ == "__main__":
    main()
