"""Shards: the parts of a bulk run, one safetensors file each, written as a whole and never changed.

shards = open_shards(Path("vectors"))
shards.missing                                      # numbers of shards that do not exist yet
for shard in shards:
    shard.vectors, shard.paths, shard.broken

A file shard-00003.safetensors contains `vectors` (n, D) float32 or float16, unit rows. `images` is JSON as uint8,
with [place, path, size, mtime, folder] per image. `broken` is JSON as uint8, with [path, reason] of the other images of
its part. `metadata` is JSON as uint8, with an object per image; it exists only if an image came from an archive. The
header records the plan and the number of the shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from nnclr_hub.arguments import checked
from nnclr_hub.bulk.atomic_file import written_whole
from nnclr_hub.bulk.plan import PRECISIONS, ShardPlan
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.source import Source
from nnclr_hub.missing_values import is_missing
from nnclr_hub.plural import counted

VECTORS, BROKEN, METADATA = "vectors", "broken", "metadata"
IMAGES = "images"
SHARD = "shard"


@dataclass(frozen=True)
class Shard:
    """One part of a bulk run.

    plan: plan of the run.
    number: from 0.
    file: path of the shard.
    count: n, the number of images with vectors.
    """

    plan: ShardPlan
    number: int
    file: Path
    count: int

    @cached_property
    def images(self) -> tuple[Source, ...]:
        """n images, in the order of the vectors, as far as they can be named."""
        rows, places = json.loads(self._tensor(IMAGES).tobytes()), self.plan.places
        return tuple(Source(places[one[0]], *one[1:4], folder=one[4]) for one in rows)

    @cached_property
    def paths(self) -> list[str]:
        """n names: each place as passed, and the path below it."""
        return list(map(str, self.images))

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        """What the archive says about each image: `__key__`, `cls`, `txt` and the fields of its JSON; {} for a file."""
        with safe_open(self.file, "numpy") as file:
            known = METADATA in file.keys()  # noqa: SIM118
        return json.loads(self._tensor(METADATA).tobytes()) if known else [{} for _ in self.images]

    @cached_property
    def ids(self) -> list[str]:
        """n ids: the key of a sample of WebDataset, and otherwise the name."""
        return [str(one.get("__key__") or path) for one, path in zip(self.metadata, self.paths, strict=True)]

    @cached_property
    def labels(self) -> list[str | None]:
        """n labels: `cls` of a sample, and otherwise the name of the image's folder; None directly below the source."""
        return [
            (image.folder or None) if is_missing(one.get("cls")) else str(one["cls"])
            for one, image in zip(self.metadata, self.images, strict=True)
        ]

    @cached_property
    def broken(self) -> tuple[tuple[str, str], ...]:
        """(path, reason) of the part's other images."""
        return tuple((path, reason) for path, reason in json.loads(self._tensor(BROKEN).tobytes()))

    @property
    def vectors(self) -> np.ndarray:
        """(n, D) float32 or float16, unit rows; read from disk each time."""
        return self._tensor(VECTORS)

    def _tensor(self, name: str) -> np.ndarray:
        with safe_open(self.file, "numpy") as file:
            return file.get_tensor(name)


class Shards:
    """The existing shards of a folder, in order.

    Args:
        folder: of `embed_shards`, complete or not.

    Raises:
        InvalidRequest: it is not a folder of shards.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.plan = ShardPlan.read(self.folder)

    def __iter__(self) -> Iterator[Shard]:
        for number in range(self.plan.shards):
            shard = find_shard(self.folder, self.plan, number)
            if shard is not None:
                yield shard

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the missing shards."""
        there = {shard.number for shard in self}
        return tuple(number for number in range(self.plan.shards) if number not in there)

    def require_all(self) -> None:
        """Check that all shards exist; raise InvalidRequest if not."""
        if self.missing:
            raise InvalidRequest(
                f"{self.folder} lacks {len(self.missing)} of {counted(self.plan.shards, 'shard')}; run the same `nnclr "
                "embed` again to make them."
            )


@checked
def open_shards(folder: str | Path) -> Shards:
    """Open the shards of a bulk run; raise InvalidRequest if the folder does not contain shards."""
    return Shards(folder)


def write_shard(
    folder: Path,
    plan: ShardPlan,
    number: int,
    vectors: np.ndarray,
    images: Sequence[Source],
    broken: Sequence[tuple[str, str]],
    metadata: Sequence[dict[str, Any]] = (),
) -> None:
    """Write a shard; it is on disk when this returns.

    Args:
        vectors: (n, D) float, unit rows.
        images: at the places of the plan.
        broken: (path, reason) of the part's other images.
        metadata: metadata of each image, if there is any.

    Raises:
        DiskFull: nothing was written.
    """
    numbers = {place: number for number, place in enumerate(plan.places)}
    tensors = {
        VECTORS: np.ascontiguousarray(vectors, PRECISIONS[plan.precision]),
        IMAGES: _json([[numbers[one.place], one.path, one.size, one.mtime, one.folder] for one in images]),
        BROKEN: _json(list(broken)),
        **({METADATA: _json(list(metadata))} if any(metadata) else {}),
    }
    # a single entry, because safetensors writes several in random order, and equal shards must have equal bytes
    content = save(tensors, {SHARD: _which(plan, number)})
    with written_whole(_file(folder, number)) as file:
        file.write(content)


def find_shard(folder: Path, plan: ShardPlan, number: int) -> Shard | None:
    """Return a shard of the plan; None if it does not exist, is damaged or belongs to another plan."""
    path = _file(folder, number)
    if not path.exists():
        return None
    try:
        with safe_open(path, "numpy") as file:
            header, (count, dim) = file.metadata() or {}, file.get_slice(VECTORS).get_shape()
    except (SafetensorError, ValueError, OSError):
        return None
    belongs = header.get(SHARD) == _which(plan, number) and dim == plan.embed_dim
    return Shard(plan, number, path, count) if belongs else None


def _which(plan: ShardPlan, number: int) -> str:
    return f"{plan.id} {number}"


def _json(value: Any) -> np.ndarray:
    # ASCII keeps names that are not valid UTF-8 as escapes
    return np.frombuffer(json.dumps(value).encode("ascii"), np.uint8)


def _file(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05}.safetensors"
