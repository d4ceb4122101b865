"""Data sets by name: `--data cifar10` instead of a folder.

torchvision fetches and checks them; what does not come as images in folders is written out as such
once, below the cache folder, so that a named set is a folder like any other: with splits, labels, and
files that a search can show.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import MissingDependency, NoImages
from nnclr_hub.progress import bar


@dataclass(frozen=True)
class Named:
    """A data set of torchvision's.

    kind: its class in torchvision.datasets.
    splits: our split -> the arguments that give it.
    folder: where it lies already as folders of images, below the download; None for one to write out.
    train_per_class: for a set without splits, how many of each class are for training; the others are for test.
    """

    kind: str
    splits: dict[str, dict[str, Any]]
    folder: str | None = None
    train_per_class: int = 0


_BY_FLAG = {"train": {"train": True}, "test": {"train": False}}
_BY_NAME = {"train": {"split": "train"}, "test": {"split": "test"}}
_WITH_VAL = {**_BY_NAME, "val": {"split": "val"}}

NAMED: dict[str, Named] = {
    "cifar10": Named("CIFAR10", _BY_FLAG),
    "cifar100": Named("CIFAR100", _BY_FLAG),
    "stl10": Named("STL10", {**_BY_NAME, "unlabelled": {"split": "unlabeled"}}),
    "svhn": Named("SVHN", _BY_NAME),
    "imagenette": Named("Imagenette", {"train": {"split": "train", "size": "160px"}}, "imagenette2-160"),
    "food101": Named("Food101", _BY_NAME),
    "sun397": Named("SUN397", {"all": {}}, train_per_class=50),
    "cars": Named("StanfordCars", _BY_NAME),
    "aircraft": Named("FGVCAircraft", _WITH_VAL),
    "voc2007": Named("VOCDetection", {p: {"year": "2007", "image_set": p} for p in ("train", "val", "test")}),
    "dtd": Named("DTD", _WITH_VAL),
    "pets": Named("OxfordIIITPet", {"train": {"split": "trainval"}, "test": {"split": "test"}}),
    "caltech101": Named("Caltech101", {"all": {}}, train_per_class=30),
    "flowers": Named("Flowers102", _WITH_VAL),
}


def find_data(given: Sequence[str | Path], say: Console) -> list[Path]:
    """A folder for each of `given`: itself, or the named data set, fetched first if need be.

    Args:
        given: folders, or names of NAMED. A folder of that name in the working directory goes first.
        say: where progress is shown.

    Raises:
        NoImages: neither a folder nor a name, or the set cannot be fetched.
    """
    folders = []
    for one in given:
        name = str(one)
        if Path(one).exists() or os.sep in name:
            folders.append(Path(one))
        elif name in NAMED:
            folders.append(fetch(name, say))
        else:
            close = get_close_matches(name, NAMED, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"give a folder, or one of {', '.join(NAMED)}."
            raise NoImages(f"{name} is neither a folder nor a data set that has a name here: {hint}")
    return folders


def fetch(name: str, say: Console) -> Path:
    """The folder of a named data set."""
    named, root = NAMED[name], cache_folder() / "datasets" / name
    if named.folder is not None:
        whole = root / f"{named.folder}.whole"  # an archive that was being unpacked when the power went is not
        if not whole.exists():
            shutil.rmtree(root / named.folder, ignore_errors=True)
            for arguments in named.splits.values():
                _open(name, named, root, arguments)
            whole.touch()
        return root / named.folder
    ready = root / "pictures" / name  # scores carry the folder's name
    if not ready.is_dir():
        half = root / "pictures.part"
        shutil.rmtree(half, ignore_errors=True)
        table: list[tuple[str, ...]] = []
        for split, arguments in named.splits.items():
            pictures = _open(name, named, root, arguments)
            with bar(say, f"writing {name}/{split}") as advance:
                table += _write_out(pictures, half, _splits(pictures, split, named.train_per_class), advance)
        if table:
            with (half / "labels.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("path", "labels", "uncertain"), *table])
        ready.parent.mkdir(exist_ok=True)
        half.rename(ready)
    return ready


def _open(name: str, named: Named, root: Path, arguments: dict[str, Any]) -> Any:
    import torchvision

    root.mkdir(parents=True, exist_ok=True)
    kind = getattr(torchvision.datasets, named.kind)
    try:
        try:
            return kind(root, download=False, **arguments)
        except (OSError, RuntimeError):  # not here yet
            return kind(root, download=True, **arguments)
    except ModuleNotFoundError as error:  # SVHN comes as a file of MATLAB's
        raise MissingDependency(
            f"{name} needs the package {error.name}, which is not installed: pip install {error.name}."
        ) from error
    except (OSError, RuntimeError, ValueError) as error:  # no network; not the right sum
        raise NoImages(
            f"{name} could not be fetched ({' '.join(str(error).split()) or type(error).__name__}): connect to the "
            f"network, put torchvision's own download into {root}, or give a folder of images."
        ) from error


def _splits(data: Any, split: str, train_per_class: int) -> list[str]:
    """The split of each image; of a set that has none, an equal number of each class, drawn once, is for training."""
    if not train_per_class:
        return [split] * len(data)
    classes = np.array(data.y if hasattr(data, "y") else data._labels)  # Caltech101; SUN397 tells it nowhere else
    splits = np.full(len(data), "test", dtype=object)
    draws = np.random.default_rng(0)
    for one in np.unique(classes):
        splits[draws.permutation(np.flatnonzero(classes == one))[:train_per_class]] = "train"
    return splits.tolist()


def _write_out(
    data: Any, folder: Path, splits: Sequence[str], advance: Callable[[int, int], None]
) -> list[tuple[str, ...]]:
    """folder/SPLIT/CLASS/NUMBER.png, lossless; images without a class directly in the split. Of images with several
    labels, the rows of a table."""
    classes = list(getattr(data, "classes", getattr(data, "categories", [])))
    rows = []
    for number, split in enumerate(splits):
        picture, label = data[number]
        place = folder / split
        if isinstance(label, dict):
            labels, uncertain = _voc_labels(label)
            rows.append((f"{split}/{number:06}.png", ";".join(labels), ";".join(uncertain)))
        elif label is not None and int(label) >= 0:
            place /= str(classes[int(label)]).replace("/", "-") if classes else str(int(label))
        place.mkdir(parents=True, exist_ok=True)
        picture.convert("RGB").save(place / f"{number:06}.png", compress_level=1)
        advance(number + 1, len(data))
    return rows


def _voc_labels(target: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Classes of which an object is there, and those of which only difficult ones are: they count neither way."""
    objects = target["annotation"]["object"]
    sure = {one["name"] for one in objects if one["difficult"] != "1"}
    return sorted(sure), sorted({one["name"] for one in objects} - sure)
