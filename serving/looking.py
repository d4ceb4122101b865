"""Attention by an engine: its three steps, each in the thread that it belongs to.

look(engine, AttentionSettings(Point(3, 4)), image, targets)        # blocks; for threads, such as the page's
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nnclr_hub.encoder.attention import AttentionMap, AttentionSettings, Looker
from nnclr_hub.encoder.embedder import ImageLike

from .engine import Errand

Each = Callable[[Sequence[ImageLike], Errand], list[Any]]


def look(
    looker: Looker, each: Each, settings: AttentionSettings, image: ImageLike, targets: Sequence[ImageLike]
) -> list[AttentionMap]:
    """The map of a picture, or one a target: see `Encoder.attention`.

    Args:
        looker: of the engine's encoder.
        each: the engine's, or a model's.

    Raises:
        ImageError, InvalidRequest, and what the engine raises.
    """
    looker.check(settings, len(targets))
    prepare = partial(looker.prepare, settings=settings)
    found = each([image], Errand(prepare, looker.forward))
    if targets:
        found += each(targets, Errand(partial(prepare, asked=False), looker.forward))
    for one in found:
        if isinstance(one, Exception):
            raise one
    return looker.maps(settings, found[0], found[1:])
