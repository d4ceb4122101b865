"""Data sets by name: `--data cifar10` instead of a folder.

torchvision fetches and checks them; what does not come as pictures in folders is written out as such
once, below the cache folder, so that a named set is a folder like any other: with splits, labels, and
files that a search can show.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.console import Console

from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import NoImages
from nnclr_hub.progress import bar


@dataclass(frozen=True)
class Named:
    """A data set of torchvision's.

    kind: its class in torchvision.datasets.
    splits: our split -> the arguments that give it.
    folder: where it lies already as folders of pictures, below the download; None for one to write out.
    """

    kind: str
    splits: dict[str, dict[str, Any]]
    folder: str | None = None


_BY_FLAG = {"train": {"train": True}, "test": {"train": False}}
_BY_NAME = {"train": {"split": "train"}, "test": {"split": "test"}}

NAMED: dict[str, Named] = {
    "cifar10": Named("CIFAR10", _BY_FLAG),
    "cifar100": Named("CIFAR100", _BY_FLAG),
    "stl10": Named("STL10", {**_BY_NAME, "unlabelled": {"split": "unlabeled"}}),
    "svhn": Named("SVHN", _BY_NAME),
    "imagenette": Named("Imagenette", {"train": {"split": "train", "size": "160px"}}, "imagenette2-160"),
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
        ready = root / named.folder
        if not ready.is_dir():
            for arguments in named.splits.values():
                _open(name, named, root, arguments)
        return ready
    ready = root / "pictures"
    if not ready.is_dir():
        half = root / "pictures.part"
        shutil.rmtree(half, ignore_errors=True)
        for split, arguments in named.splits.items():
            pictures = _open(name, named, root, arguments)
            with bar(say, f"writing {name}/{split}") as advance:
                _write_out(pictures, half / split, advance)
        half.rename(ready)
    return ready


def _open(name: str, named: Named, root: Path, arguments: dict[str, Any]) -> Any:
    import torchvision

    root.mkdir(parents=True, exist_ok=True)
    try:
        return getattr(torchvision.datasets, named.kind)(root, download=True, **arguments)
    except (OSError, RuntimeError) as error:  # no network; a download that does not have the right sum
        raise NoImages(
            f"{name} could not be fetched ({' '.join(str(error).split()) or type(error).__name__}): connect to the "
            f"network, put torchvision's own download into {root}, or give a folder of pictures."
        ) from error


def _write_out(data: Any, folder: Path, advance: Callable[[int, int], None]) -> None:
    """folder/CLASS/NUMBER.png, lossless; pictures without a class directly in the folder."""
    classes = list(getattr(data, "classes", []))
    for number in range(len(data)):
        picture, label = data[number]
        number_of_class = -1 if label is None else int(label)
        name = classes[number_of_class] if classes else number_of_class
        place = folder / str(name) if number_of_class >= 0 else folder
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{number:06}.png", compress_level=1)
        advance(number + 1, len(data))
