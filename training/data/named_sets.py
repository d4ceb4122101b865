"""Data sets by name: `--data cifar10` instead of a folder.

torchvision downloads and checks them. A set that is not stored as folders of images is converted once, in the cache
folder. A named set then is a folder like any other, with splits, labels, and files that a search can show.
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
from nnclr_hub.remote_files import is_address


@dataclass(frozen=True)
class NamedSet:
    """A data set of torchvision.

    kind: its class in torchvision.datasets.
    splits: our split -> the arguments of the class.
    folder: subfolder of the download that has folders of images; None for a set to convert.
    train_per_class: for a set without splits, number of training images per class; the others are for test.
    """

    kind: str
    splits: dict[str, dict[str, Any]]
    folder: str | None = None
    train_per_class: int = 0


_BY_FLAG = {"train": {"train": True}, "test": {"train": False}}
_BY_NAME = {"train": {"split": "train"}, "test": {"split": "test"}}
_WITH_VAL = {**_BY_NAME, "val": {"split": "val"}}

NAMED_SETS: dict[str, NamedSet] = {
    "cifar10": NamedSet("CIFAR10", _BY_FLAG),
    "cifar100": NamedSet("CIFAR100", _BY_FLAG),
    "stl10": NamedSet("STL10", {**_BY_NAME, "unlabeled": {"split": "unlabeled"}}),
    "svhn": NamedSet("SVHN", _BY_NAME),
    "imagenette": NamedSet("Imagenette", {"train": {"split": "train", "size": "160px"}}, "imagenette2-160"),
    "food101": NamedSet("Food101", _BY_NAME),
    "sun397": NamedSet("SUN397", {"all": {}}, train_per_class=50),
    "cars": NamedSet("StanfordCars", _BY_NAME),
    "aircraft": NamedSet("FGVCAircraft", _WITH_VAL),
    "voc2007": NamedSet("VOCDetection", {p: {"year": "2007", "image_set": p} for p in ("train", "val", "test")}),
    "dtd": NamedSet("DTD", _WITH_VAL),
    "pets": NamedSet("OxfordIIITPet", {"train": {"split": "trainval"}, "test": {"split": "test"}}),
    "caltech101": NamedSet("Caltech101", {"all": {}}, train_per_class=30),
    "flowers": NamedSet("Flowers102", _WITH_VAL),
}


def find_data(given: Sequence[str | Path], console: Console) -> list[Path | str]:
    """Return what each argument names: a folder, an archive, or a named data set, downloaded if necessary.

    Args:
        given: folders, archives, addresses, patterns of these, or names in NAMED_SETS. A folder of that name in the
            working directory takes precedence.

    Returns:
        Paths, but text for addresses and patterns.
    """
    return [one if _is_remote_or_pattern(one) else find_folder(one, console) for one in map(str, given)]


def check_names(given: Sequence[str]) -> None:
    """Check names before anything is imported or downloaded."""
    for name in given:
        if not (_is_remote_or_pattern(name) or _is_path(name) or name in NAMED_SETS):
            close = get_close_matches(name, NAMED_SETS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"use a folder or one of {', '.join(NAMED_SETS)}."
            raise NoImages(f"{name} is neither a folder nor a known data set; {hint}")


def find_folder(name: str, console: Console) -> Path:
    """Return a path as it is, or the folder of a named data set, downloaded if necessary."""
    if _is_path(name) and not is_address(name):
        return Path(name)
    check_names([name])
    if name not in NAMED_SETS:
        raise NoImages(f"{name} is an address or a pattern; name a folder of this machine.")
    return fetch(name, console)


def _is_path(name: str) -> bool:
    return Path(name).exists() or os.sep in name


def _is_remote_or_pattern(name: str) -> bool:
    return is_address(name) or bool(set(name) & set("*?[{"))


def fetch(name: str, console: Console) -> Path:
    """Return the folder of a named data set, downloading it if necessary."""
    named, root = NAMED_SETS[name], cache_folder() / "datasets" / name
    if named.folder is not None:
        whole = root / f"{named.folder}.whole"  # without this file an interrupted extraction would look complete
        if not whole.exists():
            shutil.rmtree(root / named.folder, ignore_errors=True)
            for arguments in named.splits.values():
                _open(name, named, root, arguments)
            whole.touch()
        return root / named.folder
    ready = root / "images" / name  # the folder's name becomes part of the scores' names
    if not ready.is_dir():
        half = root / "images.part"
        shutil.rmtree(half, ignore_errors=True)
        table: list[tuple[str, ...]] = []
        for split, arguments in named.splits.items():
            images = _open(name, named, root, arguments)
            with bar(console, f"writing {name}/{split}") as advance:
                table += _write_images(images, half, _splits(images, split, named.train_per_class), advance)
        if table:
            with (half / "labels.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("path", "labels", "uncertain"), *table])
        ready.parent.mkdir(exist_ok=True)
        half.rename(ready)
    return ready


def _open(name: str, named: NamedSet, root: Path, arguments: dict[str, Any]) -> Any:
    import torchvision

    root.mkdir(parents=True, exist_ok=True)
    kind = getattr(torchvision.datasets, named.kind)
    try:
        try:
            return kind(root, download=False, **arguments)
        except (OSError, RuntimeError):  # not downloaded yet
            return kind(root, download=True, **arguments)
    except ModuleNotFoundError as error:  # SVHN is a MATLAB file
        raise MissingDependency(
            f"{name} needs the package {error.name}, which is not installed; run pip install {error.name}."
        ) from error
    except (OSError, RuntimeError, ValueError) as error:  # no network, or a wrong checksum
        raise NoImages(
            f"{name} could not be downloaded ({' '.join(str(error).split()) or type(error).__name__}). Connect to the "
            f"network, place torchvision's download in {root}, or use a folder of images."
        ) from error


def _splits(data: Any, split: str, train_per_class: int) -> list[str]:
    if not train_per_class:
        return [split] * len(data)
    classes = np.array(data.y if hasattr(data, "y") else data._labels)  # Caltech101; SUN397 has no public attribute
    splits = np.full(len(data), "test", dtype=object)
    draws = np.random.default_rng(0)
    for one in np.unique(classes):
        splits[draws.permutation(np.flatnonzero(classes == one))[:train_per_class]] = "train"
    return splits.tolist()


def _write_images(
    data: Any, folder: Path, splits: Sequence[str], advance: Callable[[int, int], None]
) -> list[tuple[str, ...]]:
    """Write folder/SPLIT/CLASS/NUMBER.png, lossless; images without a class are written to the split's folder.

    Returns:
        The rows of a table for images with several labels.
    """
    classes = list(getattr(data, "classes", getattr(data, "categories", [])))
    rows = []
    for number, split in enumerate(splits):
        image, label = data[number]
        place = folder / split
        if isinstance(label, dict):
            labels, uncertain = _voc_labels(label)
            rows.append((f"{split}/{number:06}.png", ";".join(labels), ";".join(uncertain)))
        elif label is not None and int(label) >= 0:
            place /= str(classes[int(label)]).replace("/", "-") if classes else str(int(label))
        place.mkdir(parents=True, exist_ok=True)
        image.convert("RGB").save(place / f"{number:06}.png", compress_level=1)
        advance(number + 1, len(data))
    return rows


def _voc_labels(target: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the classes of the image's objects, and those with only difficult objects, which count neither way."""
    objects = target["annotation"]["object"]
    sure = {one["name"] for one in objects if one["difficult"] != "1"}
    return sorted(sure), sorted({one["name"] for one in objects} - sure)
