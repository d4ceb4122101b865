"""Every image and every pair scored through one eye."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from nnclr_hub.errors import ImageError
from nnclr_hub.progress import bar

from .boxed import BoxedSet
from .eyes import Eye, Sight
from .localization import both
from .pairs import Pair

METRICS = ("pointing", "auroc")
PARTS = ("within", "across", "control")


@dataclass(frozen=True)
class Scores:
    """Pointing and AUROC in two columns; NaN where there is none.

    within: (N, 2), of each image without a query, in all its boxes.
    across: (P, 2), of each pair, in the boxes of its class.
    control: (P, 2), the same for a query of another class.
    """

    within: np.ndarray
    across: np.ndarray
    control: np.ndarray


def score(boxed: BoxedSet, pairs: Sequence[Pair], eye: Eye, title: str, broken: dict[str, str], say: Console) -> Scores:
    """Looks at each image once, then for each query in its target.

    Args:
        boxed: the set.
        pairs: of it.
        eye: what looks.
        title: of the progress bars.
        broken: is told of files that cannot be read, with the reason; their pairs have no scores.
        say: where progress is shown.
    """
    within = np.full((len(boxed.pictures), 2), np.nan)
    sights: dict[int, Sight] = {}
    with bar(say, f"{title}, images", unit="pictures") as advance:
        for number, picture in enumerate(boxed.pictures):
            try:
                values, sights[number] = eye.look(picture)
                within[number] = both(values, picture.inside())
            except ImageError as error:
                broken[str(picture.path)] = str(error)
            advance(number + 1, len(boxed.pictures))
    found: dict[tuple, tuple[float, float]] = {}  # a place answers all queries alike
    across, control = np.full((2, len(pairs), 2), np.nan)
    with bar(say, f"{title}, pairs", unit="pairs") as advance:
        for number, pair in enumerate(pairs):
            for scores, box in ((across, pair.query), (control, pair.control)):
                if box is None or box[0] not in sights or pair.target not in sights:
                    continue
                key = (pair.target, pair.kind, box if eye.asks else None)
                if key not in found:
                    asked = boxed.pictures[box[0]].boxes[box[1]]
                    values = eye.find(sights[box[0]], asked, sights[pair.target])
                    found[key] = both(values, boxed.pictures[pair.target].inside(pair.kind))
                scores[number] = found[key]
            advance(number + 1, len(pairs))
    return Scores(within, across, control)
