"""A bulk run on this machine: the whole of it, or one of several parts that run beside each other.

embed_shards(Path("vectors"), [Path("photos")], encoder)
embed_shards(Path("vectors"), [Path("photos")], encoder, part=(2, 8))      # shards 1, 9, 17, ... of all
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

import numpy as np

from nnclr_hub.bulk.pictures import Picture, Source, contents, list_pictures, named
from nnclr_hub.bulk.plan import SHARD_SIZE, Embeds, Plan, check_part
from nnclr_hub.bulk.shards import Shards, find_shard, write_shard
from nnclr_hub.bulk.writing import sweep
from nnclr_hub.encoder.inputs import ImageLike, StoredImage
from nnclr_hub.errors import ImageError
from nnclr_hub.progress import Advance

STEP = 64  # images between two moves of the progress
NO_DIRECTION = "The network gives numbers for it that are not finite, or all zero."


class Streams(Embeds, Protocol):
    """An encoder that takes any number of images and gives their vectors one after the other."""

    def embed_in_order(self, images: Iterable[ImageLike | StoredImage]) -> Iterator[np.ndarray | ImageError]: ...


@dataclass(frozen=True)
class Embedded:
    """What a run, or a part of one, has come to.

    images: that have vectors.
    broken: (path, reason) of the others.
    shards: of all parts.
    missing: how many of these are not there yet.
    """

    pictures: int
    broken: tuple[tuple[str, str], ...]
    shards: int
    missing: int


def embed_shards(
    folder: Path,
    given: Sequence[Path],
    encoder: Streams,
    *,
    precision: str = "f32",
    shard_size: int = SHARD_SIZE,
    part: tuple[int, int] = (1, 1),
    retry_broken: bool = False,
    progress: Advance = lambda done, total: None,
) -> Embedded:
    """Embeds images into a folder of shards; called again, it makes what is missing.

    A shard is durable when it is there. Killed at any moment, a run loses no more than the shard that it is at.

    Args:
        folder: made if it is not there; holds nothing else.
        given: images, folders of them, tar archives of them.
        encoder: what embeds.
        precision: "f32", or "f16" for half the room.
        shard_size: images a shard.
        part: (k, n): of n processes that share the folder, this is the k-th, from 1.
        retry_broken: make shards again in which images could not be read.
        progress: called with (done, total) in images of this part.

    Raises:
        InvalidRequest: the folder is of another plan, or there is no such part.
        NoImages: nothing to embed.
        DiskFull: a shard does not fit.
    """
    check_part(part)
    sources, pictures = list_pictures(given)
    plan = Plan.of(encoder, sources, pictures, precision=precision, shard_size=shard_size).begin(folder)
    numbers = range(part[0] - 1, plan.shards, part[1])
    wanted = to_make(folder, plan, numbers, retry_broken=retry_broken)
    total = sum(len(plan.part(pictures, number)) for number in numbers)
    done = total - sum(len(plan.part(pictures, number)) for number in wanted)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    advance(0)
    # where the images lie is as of now: the plan may have been begun on another machine
    fill(folder, plan, sources, [(number, plan.part(pictures, number)) for number in wanted], encoder, advance)
    return come_to(folder, plan, numbers)


def to_make(folder: Path, plan: Plan, numbers: Iterable[int], *, retry_broken: bool) -> list[int]:
    """Numbers of the shards that are not there, or that hold broken images if those are to be tried again."""
    found = ((number, find_shard(folder, plan, number)) for number in numbers)
    return [number for number, shard in found if shard is None or (retry_broken and shard.broken)]


def fill(
    folder: Path,
    plan: Plan,
    sources: Sequence[Source],
    parts: Sequence[tuple[int, Sequence[Picture]]],
    encoder: Streams,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Makes shards, each written as soon as it is whole; images are decoded across their borders.

    Args:
        sources: where the images lie, seen from here.
        parts: number and images of each shard.
        advance: called with the number of images done since the last call.
    """
    results = encoder.embed_in_order(contents(sources, chain.from_iterable(pictures for _, pictures in parts)))
    for number, pictures in parts:
        good: list[Picture] = []
        rows: list[np.ndarray] = []
        broken: list[tuple[str, str]] = []
        for count, (picture, result) in enumerate(zip(pictures, islice(results, len(pictures)), strict=True), 1):
            if isinstance(result, ImageError):
                broken.append((named(plan.sources, picture), str(result)))
            elif not np.isfinite(result).all() or not result.any():
                broken.append((named(plan.sources, picture), NO_DIRECTION))
            else:
                good.append(picture)
                rows.append(result)
            if count % STEP == 0:
                advance(STEP)
        vectors = np.stack(rows) if rows else np.zeros((0, plan.dim), np.float32)
        write_shard(folder, plan, number, vectors, good, broken)
        advance(len(pictures) % STEP)


def come_to(folder: Path, plan: Plan, numbers: Iterable[int]) -> Embedded:
    """What is there of these shards, once they have been made, and how many of all are not."""
    shards = [shard for number in numbers if (shard := find_shard(folder, plan, number)) is not None]
    missing = len(Shards(folder).missing)
    sweep(folder)
    return Embedded(
        pictures=sum(shard.count for shard in shards),
        broken=tuple(chain.from_iterable(shard.broken for shard in shards)),
        shards=plan.shards,
        missing=missing,
    )
