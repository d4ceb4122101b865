"""Images with boxes: COCO's annotations.json, or a boxes.csv with one box per line.

    boxed = read_boxes(Path("coco128"))
    boxed.images[0].boxes     # (n, 4) float64: x0, y0, x1, y1 in pixels, from edge to edge

An image with a short side below 224 pixels counts as enlarged to 224, as an encoder's attention enlarges it. Sizes and
boxes are those of the enlarged image.
"""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.encoder.attention.geometry import MAX_SIDE, MIN_SIDE
from nnclr_hub.errors import ImageError, InvalidRequest
from nnclr_hub.images.decode import decode_image
from nnclr_hub.images.labels import first_names

from .task import add_files

COCO, TABLE = "annotations.json", "boxes.csv"
COLUMNS = ("file", "x0", "y0", "x1", "y1")
Size = tuple[int, int]
# of a file: class names, and (path, size or None, boxes, classes) per image, in its own pixels
Listed = tuple[tuple[str, ...], list[tuple[Path, Size | None, list[list[float]], list[int]]]]


@dataclass(frozen=True)
class BoxedImage:
    """One image.

    file_size: width and height of the upright file, in pixels.
    size: the same, enlarged if the short side is below 224.
    boxes: (n, 4) float64 x0, y0, x1, y1 in pixels of `size`, inside the image, with a positive area.
    kinds: (n,) int64, the class of each box, a position in the set's classes.
    """

    path: Path
    file_size: Size
    size: Size
    boxes: np.ndarray
    kinds: np.ndarray

    def read(self) -> Image.Image:
        """Return the upright file, RGB, not enlarged.

        Raises:
            ImageError: the file is unreadable, or its size differs from the one that its boxes refer to.
        """
        image = decode_image(self.path)
        if image.size != self.file_size:
            raise ImageError(
                f"The image is {image.width} x {image.height} pixels, but its boxes refer to "
                f"{self.file_size[0]} x {self.file_size[1]} pixels."
            )
        return image

    def inside(self, kind: int | None = None) -> np.ndarray:
        """Return (H, W) bool: the pixels whose centers are in a box, of one class or of any class."""
        width, height = self.size
        x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
        found = np.zeros((height, width), bool)
        for x0, y0, x1, y1 in self.boxes if kind is None else self.boxes[self.kinds == kind]:
            found |= np.outer((y0 <= y) & (y < y1), (x0 <= x) & (x < x1))
        return found


@dataclass(frozen=True)
class BoxedSet:
    """Images with boxes; the attributes have the names of those of a `Task`."""

    name: str
    classes: tuple[str, ...]
    images: tuple[BoxedImage, ...]
    left_out: tuple[str, ...] = ()
    metric: str = "pointing"

    def digest(self) -> str:
        """Hash the files (by path, size and time), classes and boxes; results of another hash are not reused."""
        found = hashlib.sha256(f"{self.metric} {self.classes}".encode())
        for one in self.images:
            found.update(one.boxes.tobytes() + one.kinds.tobytes())
        add_files(found, [one.path for one in self.images])
        return found.hexdigest()[:32]

    def counts(self) -> dict[str, int]:
        """Return the number of images and boxes."""
        return {"images": len(self.images), "boxes": sum(len(one.boxes) for one in self.images)}


def read_boxes(source: Path) -> BoxedSet:
    """Read the set in a folder with an annotations.json or a boxes.csv, or in such a file itself.

    annotations.json is COCO's, with `file_name` relative to it; boxes around crowds are left out. boxes.csv has the
    columns file, x0, y0, x1, y1 in whole pixels, both ends inclusive. The class of an image is the name of its folder.
    If a table names files in test/ (or val/), only those count.

    Raises:
        InvalidRequest: both files are missing, the file is invalid, or none of its images has a box.
    """
    source = Path(source)
    file = source if source.is_file() else next((f for f in (source / COCO, source / TABLE) if f.is_file()), None)
    if file is None:
        raise InvalidRequest(f"{source} has no boxes; name a folder with COCO's {COCO} or with a {TABLE}.")
    try:
        classes, listed = _coco(file) if file.suffix == ".json" else _table(file)
    except KeyError as error:
        raise InvalidRequest(f"{file} has no {error}; it is not a valid {file.name}.") from error
    except (OSError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise InvalidRequest(f"{file} cannot be read as boxes ({' '.join(str(error).split())}).") from error
    found = [(path.name, _boxed_image(path, size, boxes, kinds)) for path, size, boxes, kinds in listed]
    lost = [name for name, image in found if image is None]
    bare = sum(image is not None and not len(image.boxes) for _, image in found)
    images = tuple(image for _, image in found if image is not None and len(image.boxes))
    if not images:
        raise InvalidRequest(f"{file} has no usable image with a box; check its file names and sizes.")
    name = source.resolve().stem if source.is_file() else source.resolve().name
    notes = [f"{name}: {bare} images without a box are left out"] if bare else []
    notes += [f"{name}: {len(lost)} missing or unusable files ({first_names(lost)}) are left out"] if lost else []
    return BoxedSet(name, classes, images, tuple(notes))


def _coco(file: Path) -> Listed:
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    place = {one["id"]: i for i, one in enumerate(content["categories"])}
    boxes: dict[Any, list[tuple[list[float], int]]] = {one["id"]: [] for one in content["images"]}
    for one in content["annotations"]:
        if not one.get("iscrowd", 0):
            x, y, width, height = map(float, one["bbox"])
            boxes[one["image_id"]].append(([x, y, x + width, y + height], place[one["category_id"]]))
    images = []
    for one in content["images"]:
        pairs = boxes[one["id"]]
        size = (int(one["width"]), int(one["height"]))
        images.append((file.parent / one["file_name"], size, [box for box, _ in pairs], [kind for _, kind in pairs]))
    return tuple(str(one["name"]) for one in content["categories"]), images


def _table(file: Path) -> Listed:
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
    return classes, [
        (file.parent / name, None, file_boxes, [place[Path(name).parent.name]] * len(file_boxes))
        for name, file_boxes in boxes.items()
    ]


def _boxed_image(path: Path, size: Size | None, boxes: list[list[float]], kinds: list[int]) -> BoxedImage | None:
    """Return None for a missing or unreadable file, an image without pixels, or a narrow strip."""
    if not path.is_file():
        return None
    try:
        size = size or decode_image(path).size
    except ImageError:
        return None
    if min(size) < 1 or max(size) * MIN_SIDE > min(size) * MAX_SIDE:  # a strip's map is too coarse across
        return None
    scale = max(1.0, MIN_SIDE / min(size))
    width, height = (round(scale * side) for side in size)
    stretched = np.array(boxes, float).reshape(-1, 4) * np.tile([width / size[0], height / size[1]], 2)
    clipped = np.clip(stretched, 0, np.tile([width, height], 2))
    full = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
    return BoxedImage(path, size, (width, height), clipped[full], np.array(kinds, np.int64)[full])
