"""Attention maps scored with boxes: within an image, and from a box of one image to its class in another.

Within: the map without a query, scored in all boxes of the image. Across: the query is a box and the target another
image with its class, scored in the boxes of that class and averaged over classes. Control: the same target, with a box
of another class as the query. Pointing is whether the upsampled map's maximum is in a box; AUROC compares pixels in
boxes with those outside. Intervals are 95%, from a bootstrap over images.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from rich.console import Console
from timm.models.resnet import BasicBlock, Bottleneck
from torch import Tensor, nn

from nnclr_hub.encoder.encoder import Encoder
from nnclr_hub.errors import InvalidRequest

from .boxes.bootstrap import estimate
from .boxes.boxed import BoxedSet
from .boxes.maps import BASELINES, Baseline, BaselineMaps, EncoderMaps, MapSource
from .boxes.scoring import METRICS, PARTS, Pair, Scores, choose_pairs, score

REFERENCE = "gaussian"


@dataclass(frozen=True)
class BoxedEvaluation:
    """An encoder or a baseline on a set of images with boxes.

    console: console for progress.
    broken: unreadable files with the reason; filled during scoring.
    """

    source: Encoder | Baseline
    boxed: BoxedSet
    console: Console
    broken: dict[str, str] = field(default_factory=dict)

    def scores(self, maps: MapSource, pairs: Sequence[Pair], title: str) -> Scores:
        """Score all images and pairs."""
        return score(self.boxed, pairs, maps, f"{title} on {self.boxed.name}", self.broken, self.console)

    def encoder_scores(self, encoder: Encoder, short_side: int, similarity: str, pairs: Sequence[Pair]) -> Scores:
        """Score an encoder at one size."""
        with tempfile.TemporaryFile() as file:
            maps = EncoderMaps(encoder, short_side, similarity, file)
            return self.scores(maps, pairs, f"short side {_size(short_side)}")


def attention(
    subject: BoxedEvaluation,
    *,
    short_side: tuple[int, ...] = (0, 448),
    pairs: int = 50,
    pairs_of_one_class: int = 2000,
    least: int = 32,
    similarity: Literal["dot", "cosine"] = "dot",
    draws: int = 1000,
    seed: int = 0,
) -> Iterator[tuple[str, float]]:
    """Yield ("attention/NAME", pointing within at the first size) and the details.

    For each size: ("attention/NAME/own/within/pointing", mean) with /low and /high, and the same for across, control
    and auroc. For an encoder also /over, the gain over the Gaussian on the same images or pairs, and for across
    /over_control. Further values: the number of images that boxes cover completely (they have no AUROC), the share of
    the encoder's idle blocks, and the numbers of pairs and of their classes.

    Args:
        subject: an encoder, or a baseline.
        short_side: sizes, each the short side in pixels; 0 is the image's size.
        pairs: maximum number of pairs per class, sampled with the seed.
        pairs_of_one_class: the same, for a set with a single class.
        least: queries are boxes whose area has a square root of at least this many pixels.
        similarity: of the query and the cells.
        draws: of the bootstrap.
        seed: of pairs and bootstrap.

    Raises:
        InvalidRequest: no size, an encoder without attention maps, or no readable image.
    """
    boxed, source, name = subject.boxed, subject.source, f"attention/{subject.boxed.name}"
    if not short_side:
        raise InvalidRequest("short_side is empty; use 0 for the image's size, or a number of pixels.")
    one_class = len({int(kind) for one in boxed.images for kind in one.kinds}) == 1
    chosen = choose_pairs(boxed, most=pairs_of_one_class if one_class else pairs, least=least, seed=seed)
    intervals = _Intervals(chosen, draws, seed)
    baseline = source if isinstance(source, Baseline) else BASELINES[REFERENCE]
    of_baseline = scores = subject.scores(BaselineMaps(baseline), chosen, baseline.name)
    for number, side in enumerate(short_side):
        if isinstance(source, Encoder):
            scores = subject.encoder_scores(source, side, similarity, chosen)
        if number == 0:
            readable = ~np.isnan(scores.within[:, 0])
            if not readable.any():
                raise InvalidRequest(f"No image of {boxed.name} can be read, such as {boxed.images[0].path}.")
            yield name, float(scores.within[readable, 0].mean())
            yield f"{name}/covered", float(np.isnan(scores.within[readable, 1]).sum())
        yield from intervals.of(f"{name}/{_size(side)}", scores, None if source is baseline else of_baseline)
    if isinstance(source, Encoder):
        yield f"{name}/idle_blocks", idle_blocks(source.backbone)
    yield f"{name}/pairs", float(len(chosen))
    yield f"{name}/classes", float(len({pair.kind for pair in chosen}))


def _size(short_side: int) -> str:
    return str(short_side) if short_side else "own"


def idle_blocks(backbone: nn.Module) -> float:
    """Return the share of residual blocks whose last norm has weight 0, so that the block equals its shortcut.

    A new ResNet of timm starts with such norms. Networks without residual blocks give 0.
    """
    blocks = [module for module in backbone.modules() if isinstance(module, BasicBlock | Bottleneck)]
    ends = [block.bn3 if isinstance(block, Bottleneck) else block.bn2 for block in blocks]
    idle = [not bool(cast(Tensor, end.weight).any()) for end in ends]
    return sum(idle) / len(idle) if idle else 0.0


class _Intervals:
    """Means of scores with their intervals."""

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
        """Yield each score by its name, and its gain over the reference."""
        for part in PARTS:
            for column, metric in enumerate(METRICS):
                own = getattr(scores, part)[:, column]
                yield from self._estimate(f"{name}/{part}/{metric}", part, own)
                if reference is not None:
                    other = getattr(reference, part)[:, column]
                    yield from self._estimate(f"{name}/{part}/{metric}/over", part, own - other)
        if reference is not None:
            for column, metric in enumerate(METRICS):
                gain = scores.across[:, column] - scores.control[:, column]
                yield from self._estimate(f"{name}/across/{metric}/over_control", "across", gain)

    def _estimate(self, name: str, part: str, scores: np.ndarray) -> Iterator[tuple[str, float]]:
        if np.isnan(scores).all():
            return
        if part == "within":
            found = estimate(scores, np.arange(len(scores)), **self._of_images)
        else:
            found = estimate(scores, self._images[part], **self._of_pairs)
        yield name, found.mean
        yield f"{name}/low", found.low
        yield f"{name}/high", found.high
