"""What the encoder looks at, scored with boxes: within an image, and from a box of one image to its like in another.

Within: the map without a query, in all boxes of the image. Across: the query is a box, the target another image
that shows its class, scored in the boxes of that class and averaged over classes; the control asks the same target with
a box of another class. Pointing is whether the upsampled map's maximum lies in a box, AUROC compares pixels in
boxes with those outside. Intervals are 95%, by a bootstrap over images.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from rich.console import Console

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import InvalidRequest

from .boxes.bootstrap import estimate
from .boxes.boxed import BoxedSet
from .boxes.eyes import EncoderEye, Eye, PlaceEye
from .boxes.pairs import Pair, choose_pairs
from .boxes.places import PLACES, Place
from .boxes.residuals import idle_blocks
from .boxes.scoring import METRICS, PARTS, Scores, score

REFERENCE = "gaussian"


@dataclass(frozen=True)
class BoxedSubject:
    """An encoder or a place on a set of images with boxes.

    say: where progress is shown.
    broken: files that could not be read, with the reason; filled on the way.
    """

    source: Encoder | Place
    boxed: BoxedSet
    say: Console
    broken: dict[str, str] = field(default_factory=dict)

    def scores(self, eye: Eye, pairs: Sequence[Pair], title: str) -> Scores:
        """Of all images and pairs."""
        return score(self.boxed, pairs, eye, f"{title} on {self.boxed.name}", self.broken, self.say)

    def seen(self, encoder: Encoder, short_side: int, similarity: str, pairs: Sequence[Pair]) -> Scores:
        """Through an encoder's eye at one size."""
        with tempfile.TemporaryFile() as memory:
            eye = EncoderEye(encoder, short_side, similarity, memory)
            return self.scores(eye, pairs, f"short side {_size(short_side)}")


def attention(
    subject: BoxedSubject,
    *,
    short_side: tuple[int, ...] = (0, 448),
    pairs: int = 50,
    pairs_of_one_class: int = 2000,
    least: int = 32,
    similarity: Literal["dot", "cosine"] = "dot",
    draws: int = 1000,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Yields ("attention/NAME", pointing within at the first size) and what stands behind it.

    For each size ("attention/NAME/own/within/pointing", mean) with /low and /high, and the same for across, control and
    auroc; for an encoder also /over, what it is above the Gaussian on the same images or pairs, and for across
    /over_control. Beside these, how many images boxes cover wholly, so that they have no AUROC, which share of the
    encoder's blocks is idle, and how many pairs of how many classes there are.

    Args:
        subject: an encoder, or a place.
        short_side: sizes, each the short side in pixels; 0 is the image's own.
        pairs: at most so many a class, drawn by the seed.
        pairs_of_one_class: likewise, in a set that has one class.
        least: queries are boxes whose area has a square root of so many pixels or more.
        similarity: of the query and the cells.
        draws: of the bootstrap.
        seed: of pairs and bootstrap.

    Raises:
        InvalidRequest: an encoder of which no maps can be made, no size, or not one image can be read.
    """
    boxed, source, name = subject.boxed, subject.source, f"attention/{subject.boxed.name}"
    if not short_side:
        raise InvalidRequest("short_side names no size: give 0 for the image's own, or pixels.")
    one_class = len({int(kind) for one in boxed.pictures for kind in one.kinds}) == 1
    chosen = choose_pairs(boxed, most=pairs_of_one_class if one_class else pairs, least=least, seed=seed)
    intervals = _Intervals(chosen, draws, seed)
    place = source if isinstance(source, Place) else PLACES[REFERENCE]
    of_place = scores = subject.scores(PlaceEye(place), chosen, place.name)
    for number, side in enumerate(short_side):
        if isinstance(source, Encoder):
            scores = subject.seen(source, side, similarity, chosen)
        if number == 0:
            there = ~np.isnan(scores.within[:, 0])
            if not there.any():
                raise InvalidRequest(f"Not one image of {boxed.name} can be read, such as {boxed.pictures[0].path}.")
            yield name, float(scores.within[there, 0].mean())
            yield f"{name}/covered", float(np.isnan(scores.within[there, 1]).sum())
        yield from intervals.of(f"{name}/{_size(side)}", scores, None if source is place else of_place)
    if isinstance(source, Encoder):
        yield f"{name}/idle_blocks", idle_blocks(source.backbone)
    yield f"{name}/pairs", float(len(chosen))
    yield f"{name}/classes", float(len({pair.kind for pair in chosen}))


def _size(short_side: int) -> str:
    return str(short_side) if short_side else "own"


class _Intervals:
    """Means and intervals of scores."""

    def __init__(self, pairs: Sequence[Pair], draws: int, seed: int) -> None:
        self._of_pairs: dict[str, Any] = {
            "classes": np.array([pair.kind for pair in pairs], np.int64),
            "draws": draws,
            "seed": seed,
        }
        self._images = {
            "across": np.array([(pair.query[0], pair.target) for pair in pairs]).reshape(-1, 2),
            # a pair without a control has no score
            "control": np.array([((pair.control or pair.query)[0], pair.target) for pair in pairs]).reshape(-1, 2),
        }
        self._of_images: dict[str, Any] = {"draws": draws, "seed": seed}

    def of(self, name: str, scores: Scores, reference: Scores | None) -> Iterator[tuple[str, float]]:
        """Each figure by its name, and what it is above the reference."""
        for part in PARTS:
            for column, metric in enumerate(METRICS):
                own = getattr(scores, part)[:, column]
                yield from self._figure(f"{name}/{part}/{metric}", part, own)
                if reference is not None:
                    other = getattr(reference, part)[:, column]
                    yield from self._figure(f"{name}/{part}/{metric}/over", part, own - other)
        if reference is not None:
            for column, metric in enumerate(METRICS):
                gain = scores.across[:, column] - scores.control[:, column]
                yield from self._figure(f"{name}/across/{metric}/over_control", "across", gain)

    def _figure(self, name: str, part: str, scores: np.ndarray) -> Iterator[tuple[str, float]]:
        if np.isnan(scores).all():
            return
        if part == "within":
            found = estimate(scores, np.arange(len(scores)), **self._of_images)
        else:
            found = estimate(scores, self._images[part], **self._of_pairs)
        yield name, found.mean
        yield f"{name}/low", found.low
        yield f"{name}/high", found.high
