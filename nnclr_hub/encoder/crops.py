"""The crops of an image whose vectors `encoder.embed(images, crops=N)` averages.

An average over parts of the image is often a better vector than one of its center, at N times the cost (BagSSL, TMLR
2023; EMP-SSL, arXiv 2304.03977). docs/results/starter.md has both.
"""

from __future__ import annotations

from collections.abc import Iterator

from PIL import Image

from nnclr_hub.images.channels import AnyImage

MAX_CROPS = 128
MIRROR = Image.Transpose.FLIP_LEFT_RIGHT
MIN_SHARE = 0.3  # smallest crop, as a share of the image's area
BASES = (2, 3, 5)  # bases of the Halton sequence: area, position across, position down


def crop_views(image: AnyImage, crops: int) -> Iterator[AnyImage]:
    """Yield views of an upright image: itself, its mirror image, and then squares of 0.3 to 1 of its area.

    The squares follow a Halton sequence, so they are the same for each call and cover position and size evenly; every
    second one is mirrored. The first N of more crops are the crops of N.
    """
    yield image
    if crops > 1:
        yield image.transpose(MIRROR)
    for number in range(1, crops - 1):
        area, across, down = (_halton(number, base) for base in BASES)
        # a square of that share of the largest one in the image
        length = max(1, round((MIN_SHARE + (1 - MIN_SHARE) * area) ** 0.5 * min(image.size)))
        left, top = round(across * (image.width - length)), round(down * (image.height - length))
        view = image.crop((left, top, left + length, top + length))
        yield view.transpose(MIRROR) if number % 2 else view


def _halton(index: int, base: int) -> float:
    """Return element `index` of the van der Corput sequence in a base, in [0, 1)."""
    value, fraction = 0.0, 1.0
    while index:
        fraction /= base
        index, digit = divmod(index, base)
        value += digit * fraction
    return value
