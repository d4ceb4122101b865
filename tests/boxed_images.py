"""Images with boxes, as tests need them."""

import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from skimage import data


def write_coco(folder: Path, images: Sequence[tuple], classes: Sequence[str] = ("cat", "dog")) -> Path:
    """A set in COCO's form, of crops of scikit-image's cat; ids are no places in any list.

    Args:
        folder: made if it is not there, and given back.
        images: (width, height, [(class, x, y, w, h), ...]) each; class is a place in `classes`.
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
