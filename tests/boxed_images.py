"""Images with boxes for tests."""

import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from skimage import data


def write_coco(folder: Path, images: Sequence[tuple], classes: Sequence[str] = ("cat", "dog")) -> Path:
    """Write a set in COCO's format from crops of scikit-image's cat; ids differ from positions in the lists.

    Args:
        folder: created if necessary, and returned.
        images: (width, height, [(class, x, y, w, h), ...]) each; class is a position in `classes`.
        classes: names.
    """
    coco: dict[str, list] = {"images": [], "annotations": []}
    coco["categories"] = [{"id": 7 + 2 * i, "name": name} for i, name in enumerate(classes)]
    folder.mkdir(parents=True, exist_ok=True)
    photo = Image.fromarray(data.cat())
    for number, (width, height, boxes) in enumerate(images):
        left, top = 7 * number % 50, 11 * number % 40
        cut = photo.crop((left, top, left + 400, top + 260))
        cut.resize((width, height)).save(folder / f"{number}.png")
        coco["images"].append({"id": 100 + number, "file_name": f"{number}.png", "width": width, "height": height})
        for kind, *box in boxes:
            coco["annotations"].append({"image_id": 100 + number, "category_id": 7 + 2 * kind, "bbox": box})
    (folder / "annotations.json").write_text(json.dumps(coco))
    return folder
