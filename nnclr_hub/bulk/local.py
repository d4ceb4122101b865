"""A bulk run on this machine: all shards, or one of several parts that run in parallel.

embed_shards(Path("vectors"), [Path("photos")], encoder)
embed_shards(Path("vectors"), [Path("photos")], encoder, part=(2, 8))      # the second eighth
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, compress
from operator import not_
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nnclr_hub.arguments import checked
from nnclr_hub.bulk.atomic_file import sweep
from nnclr_hub.bulk.plan import SHARD_SIZE, Places, ShardPlan, check_form
from nnclr_hub.bulk.shards import Shard, Shards, find_shard, write_shard
from nnclr_hub.errors import ImageError
from nnclr_hub.images.pool import decoding_processes
from nnclr_hub.images.reading import PLAIN
from nnclr_hub.images.source import Source
from nnclr_hub.images.tiles import Tiling
from nnclr_hub.progress import Advance
from nnclr_hub.store.spec import Embeds
from nnclr_hub.workbench.folder_changes import metadata_of

READERS = 16
STEP = 64  # images between two progress reports
INVALID_VECTOR = "The network's output for this image is not finite, or all zero."
Part = tuple[int, list[Source], list[Source]]  # see `ShardPlan.parts`


class Streams(Embeds, Protocol):
    """An encoder that embeds any number of images and yields their vectors one by one."""

    def embed_in_order(self, images: Iterable[Any]) -> Iterator[np.ndarray | ImageError]: ...


@dataclass(frozen=True)
class Embedded:
    """The result of a run, or of one part.

    images: number of images with vectors.
    broken: (path, reason) of the other images.
    shards: number of shards of all parts.
    missing: how many of these do not exist yet.
    """

    images: int
    broken: tuple[tuple[str, str], ...]
    shards: int
    missing: int


@checked
def embed_shards(
    folder: str | Path,
    given: Sequence[str | Path],
    encoder: Streams,
    *,
    precision: str = "f32",
    shard_size: int = SHARD_SIZE,
    part: tuple[int, int] = (1, 1),
    tiling: Tiling | None = None,
    progress: Advance = lambda done, total: None,
) -> Embedded:
    """Embed images into a folder of shards; call again to make missing shards, and to retry unreadable images.

    A shard that exists is durable. A run that is killed loses at most the shard in progress.

    Args:
        folder: created if necessary; contains nothing else.
        given: images, folders of images, or archives of images; see `find_images`.
        precision: "f32", or "f16" for half the disk space.
        part: (k, n): make the k-th of n parts, from 1; each part is a separate process.
        tiling: embed tiles of the images instead of whole images.
        progress: called with (done, total) in images of this part.

    Raises:
        InvalidRequest: the folder has another plan, or the part is invalid.
        NoImages: there are no images.
        DiskFull: a shard does not fit.
    """
    folder = Path(folder)
    check_form(precision, shard_size, part)
    places = Places.of(given, tiling, getattr(encoder, "reading", PLAIN))
    plan = ShardPlan.begin(folder, encoder, places, precision=precision, shard_size=shard_size)
    # in a row, so that a part lists few archives
    numbers = range(plan.shards * (part[0] - 1) // part[1], plan.shards * part[0] // part[1])
    wanted, total = shards_to_make(folder, plan, numbers), plan.images(numbers)
    done = total - plan.images(wanted)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    advance(0)
    if not wanted:  # check at least that these are the images
        list(plan.parts(folder, places, numbers[:1]))
    with decoding_processes(images=total - done):
        fill(folder, plan, plan.parts(folder, places, wanted), encoder, advance)
    return summarize(folder, plan, numbers)


def shards_to_make(folder: Path, plan: ShardPlan, numbers: Iterable[int]) -> list[int]:
    """Return the numbers of missing shards, and of shards with broken images: what broke them may be gone."""
    found = ((number, find_shard(folder, plan, number)) for number in numbers)
    return [number for number, shard in found if shard is None or shard.broken]


def fill(
    folder: Path,
    plan: ShardPlan,
    parts: Iterable[Part],
    encoder: Streams,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Make shards and write each as soon as it is complete; decoding continues across their borders.

    Of a shard that exists, only the broken images are embedded.

    Args:
        parts: see `ShardPlan.parts`; each has an image without a vector.
        advance: called with the number of images done since the last call.
    """
    begun: deque[tuple[Part, Shard | None, list[bool]]] = deque()

    def images_to_embed() -> Iterator[Source]:
        for part in parts:
            shard = find_shard(folder, plan, part[0])
            unread = {path for path, _ in shard.broken} if shard else set()
            has = [shard is not None and str(one) not in unread for one in part[2]]
            if shard and sum(has) != shard.count:  # an archive may have several members of one name
                has = [False] * len(has)
            begun.append((part, shard, has))
            yield from compress(part[1], map(not_, has))

    results = encoder.embed_in_order(images_to_embed())
    for first in results:  # the results of the next shard
        (number, images, named), shard, has = begun.popleft()
        new = chain([first], results)
        stored = iter(shard.vectors) if shard and any(has) else iter(())
        good: list[int] = []
        rows: list[np.ndarray] = []
        broken: list[tuple[str, str]] = []
        for i, is_known in enumerate(has):
            result = next(stored if is_known else new)
            if isinstance(result, ImageError):
                broken.append((str(named[i]), str(result)))
            elif not np.isfinite(result).all() or not result.any():
                broken.append((str(named[i]), INVALID_VECTOR))
            else:
                good.append(i)
                rows.append(result)
            if (i + 1) % STEP == 0:
                advance(STEP)
        if not any(has) or len(good) > sum(has):
            vectors = np.stack(rows) if rows else np.zeros((0, plan.embed_dim), np.float32)
            metadata = _all_metadata([images[i] for i in good])
            write_shard(folder, plan, number, vectors, [named[i] for i in good], broken, metadata)
        advance(len(images) % STEP)


def _all_metadata(images: Sequence[Source]) -> list[dict[str, Any]]:
    if not any(one.texts for one in images):
        return list(map(metadata_of, images))
    with ThreadPoolExecutor(READERS) as pool:  # an address answers slowly, but many requests at once
        return list(pool.map(metadata_of, images))


def summarize(folder: Path, plan: ShardPlan, numbers: Iterable[int]) -> Embedded:
    """Return the result of these shards, and how many of all shards are missing."""
    shards = [shard for number in numbers if (shard := find_shard(folder, plan, number)) is not None]
    missing = len(Shards(folder).missing)
    sweep(folder)
    broken = chain.from_iterable(shard.broken for shard in shards)
    return Embedded(sum(shard.count for shard in shards), tuple(broken), plan.shards, missing)
