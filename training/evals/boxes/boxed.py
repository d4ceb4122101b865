"""A set of images with boxes: COCO's annotations.json, or a boxes.csv with a box a line.

    boxed = read_boxes(Path("coco128"))
    boxed.images[0].boxes     # (n, 4) float64: x0, y0, x1, y1 in pixels, from edge to edge

An image whose short side is below 224 pixels counts as enlarged to that, as the attention of an encoder enlarges it:
sizes and boxes are those of the enlarged image.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.attention.sizes import MAX_SIDE, SHORTEST
from nnclr_hub.encoder.decoding import decode_image
from nnclr_hub.encoder.labeled import some
from nnclr_hub.errors import ImageError, InvalidRequest

from ..task import add_files

COCO, TABLE = "annotations.json", "boxes.csv"
COLUMNS = ("file", "x0", "y0", "x1", "y1")


@dataclass(frozen=True)
class BoxedImage:
    """One image.

    file_size: width and height of the upright file, in pixels.
    size: the same, enlarged if the short side is below 224.
    boxes: (n, 4) float64 x0, y0, x1, y1 in pixels of `size`, within it, of some area.
    kinds: (n,) int64, the class of each box, a place in the set's classes.
    """

    path: Path
    file_size: tuple[int, int]
    size: tuple[int, int]
    boxes: np.ndarray
    kinds: np.ndarray

    def read(self) -> Image.Image:
        """The upright file, RGB, not enlarged.

        Raises:
            ImageError: it cannot be read, or is not of the size that its boxes were drawn in.
        """
        image = decode_image(self.path)
        if image.size != self.file_size:
            raise ImageError(
                f"The image is {image.width} x {image.height} pixels, and its boxes were drawn in "
                f"{self.file_size[0]} x {self.file_size[1]}."
            )
        return image

    def inside(self, kind: int | None = None) -> np.ndarray:
        """(H, W) bool: the pixels whose centers lie in a box, of one class or of any."""
        width, height = self.size
        x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
        found = np.zeros((height, width), bool)
        for x0, y0, x1, y1 in self.boxes if kind is None else self.boxes[self.kinds == kind]:
            found |= np.outer((y0 <= y) & (y < y1), (x0 <= x) & (x < x1))
        return found


@dataclass(frozen=True)
class BoxedSet:
    """Images with boxes; the names are those of a `Task`.

    classes: names of what is boxed.
    images: those with a box.
    left_out: sentences about what does not count.
    """

    name: str
    classes: tuple[str, ...]
    pictures: tuple[BoxedImage, ...]
    left_out: tuple[str, ...] = ()
    metric: str = "pointing"

    def digest(self) -> str:
        """A hash of files (by path, size and time), classes and boxes: another is another question."""
        found = hashlib.sha256(f"{self.metric} {self.classes}".encode())
        for one in self.pictures:
            found.update(one.boxes.tobytes() + one.kinds.tobytes())
        add_files(found, [one.path for one in self.pictures])
        return found.hexdigest()[:32]

    def counts(self) -> dict[str, int]:
        """How much there is of it."""
        return {"pictures": len(self.pictures), "boxes": sum(len(one.boxes) for one in self.pictures)}


def read_boxes(source: Path) -> BoxedSet:
    """The set in a folder with an annotations.json or a boxes.csv, or in such a file itself.

    annotations.json is COCO's, its `file_name` relative to it; boxes around crowds are left out. boxes.csv has the
    columns file, x0, y0, x1, y1, whole pixels, both ends inclusive; the class of an image is the name of its folder,
    and of a table that names files of test/ (or val/) only those count.

    Raises:
        InvalidRequest: neither is there, it cannot be read, or no image of it has a box.
    """
    source = Path(source)
    file = source if source.is_file() else next((f for f in (source / COCO, source / TABLE) if f.is_file()), None)
    if file is None:
        raise InvalidRequest(f"{source} has no boxes: give a folder with COCO's {COCO}, or with a {TABLE}.")
    try:
        found = _coco(file) if file.suffix == ".json" else _table(file)
    except KeyError as error:
        raise InvalidRequest(f"{file} lacks {error}: it is not of the form that its name says.") from error
    except (OSError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise InvalidRequest(f"{file} cannot be read as boxes ({' '.join(str(error).split())}).") from error
    pictures, bare, lost = [], 0, []
    for path, size, boxes, kinds in found.pictures:
        picture = _picture(path, size, boxes, kinds)
        if picture is None:
            lost.append(path.name)
        elif not len(picture.boxes):
            bare += 1
        else:
            pictures.append(picture)
    name = source.resolve().stem if source.is_file() else source.resolve().name
    if not pictures:
        raise InvalidRequest(f"{file} has no image with a box that can be looked at: check its file names and sizes.")
    said = [f"{name}: {bare} images without a box are left out"] if bare else []
    said += (
        [f"{name}: {len(lost)} files that are not there or cannot be looked at ({some(lost)}) are left out"]
        if lost
        else []
    )
    return BoxedSet(name, found.classes, tuple(pictures), tuple(said))


@dataclass(frozen=True)
class _Listed:
    """What a file lists: class names, and (path, size or None, boxes, classes) an image, in its own pixels."""

    classes: tuple[str, ...]
    pictures: Iterable[tuple[Path, tuple[int, int] | None, list[list[float]], list[int]]]


def _coco(file: Path) -> _Listed:
    told: dict[str, Any] = json.loads(file.read_text("utf-8"))
    place = {one["id"]: i for i, one in enumerate(told["categories"])}
    boxes: dict[Any, list[tuple[list[float], int]]] = {one["id"]: [] for one in told["images"]}
    for one in told["annotations"]:
        if not one.get("iscrowd", 0):
            x, y, width, height = map(float, one["bbox"])
            boxes[one["image_id"]].append(([x, y, x + width, y + height], place[one["category_id"]]))
    pictures = []
    for one in told["images"]:
        own = boxes[one["id"]]
        size = (int(one["width"]), int(one["height"]))
        pictures.append((file.parent / one["file_name"], size, [box for box, _ in own], [kind for _, kind in own]))
    return _Listed(tuple(str(one["name"]) for one in told["categories"]), pictures)


def _table(file: Path) -> _Listed:
    with file.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.DictReader(lines)
        missing = set(COLUMNS) - set(reader.fieldnames or ())
        if missing:
            raise KeyError(", ".join(sorted(missing)))
        rows = list(reader)
    for part in ("test", "val"):
        if any(Path(row["file"]).parts[0] == part for row in rows):
            rows = [row for row in rows if Path(row["file"]).parts[0] == part]
            break
    boxes: dict[str, list[list[float]]] = {}
    for row in rows:
        x0, y0, x1, y1 = (int(row[name]) for name in COLUMNS[1:])
        boxes.setdefault(row["file"], []).append([x0, y0, x1 + 1, y1 + 1])
    classes = tuple(sorted({Path(name).parent.name for name in boxes}))
    place = {name: i for i, name in enumerate(classes)}
    pictures = [(file.parent / one, None, own, [place[Path(one).parent.name]] * len(own)) for one, own in boxes.items()]
    return _Listed(classes, pictures)


def _picture(path: Path, size: tuple[int, int] | None, boxes: list[list[float]], kinds: list[int]) -> BoxedImage | None:
    """None: the file is not there, is no image where its size is read from it, or has no pixels or is a strip."""
    if not path.is_file():
        return None
    try:
        size = size or decode_image(path).size
    except ImageError:
        return None
    if min(size) < 1 or max(size) * SHORTEST > min(size) * MAX_SIDE:  # of a strip the map is too coarse across
        return None
    scale = max(1.0, SHORTEST / min(size))
    width, height = (round(scale * side) for side in size)
    stretched = np.array(boxes, float).reshape(-1, 4) * np.tile([width / size[0], height / size[1]], 2)
    clipped = np.clip(stretched, 0, np.tile([width, height], 2))
    full = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
    return BoxedImage(path, size, (width, height), clipped[full], np.array(kinds, np.int64)[full])


def large_boxes(boxed: BoxedSet, least: float) -> Iterator[tuple[int, int]]:
    """(image, box) of each box whose area has a square root of at least that many pixels."""
    for number, one in enumerate(boxed.pictures):
        sides = one.boxes[:, 2:] - one.boxes[:, :2]
        yield from ((number, int(box)) for box in np.flatnonzero(sides.prod(axis=1) >= least**2))
