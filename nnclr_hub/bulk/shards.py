"""Shards: parts of a bulk run, a safetensors file each, written whole and never changed.

shards = open_shards(Path("vectors"))
shards.missing                                      # numbers of those that are not there yet
for shard in shards:
    shard.vectors, shard.paths, shard.broken

A file shard-00003.safetensors holds `vectors` (n, D) float32 or float16, unit rows; `images`, as uint8, the JSON of
[source, path, size, mtime] of each; `broken`, likewise, [path, reason] of the others of its part. Its header says which
plan's and which shard it is.
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

from nnclr_hub.bulk.pictures import Picture, named
from nnclr_hub.bulk.plan import PRECISIONS, Plan
from nnclr_hub.bulk.writing import written_whole
from nnclr_hub.errors import InvalidRequest

VECTORS, PICTURES, BROKEN = "vectors", "pictures", "broken"
SHARD = "shard"


@dataclass(frozen=True)
class Shard:
    """One part of a bulk run.

    plan: that it belongs to.
    number: from 0.
    file: that holds it.
    count: n, of images that have vectors.
    """

    plan: Plan
    number: int
    file: Path
    count: int

    @cached_property
    def pictures(self) -> tuple[Picture, ...]:
        """n, in the order of the vectors."""
        return tuple(Picture(*one) for one in json.loads(self._tensor(PICTURES).tobytes()))

    @cached_property
    def paths(self) -> list[str]:
        """n names: each source as it was given, and the path below it."""
        return [named(self.plan.sources, one) for one in self.pictures]

    @cached_property
    def broken(self) -> tuple[tuple[str, str], ...]:
        """(path, reason) of the part's other images."""
        return tuple((path, reason) for path, reason in json.loads(self._tensor(BROKEN).tobytes()))

    @property
    def vectors(self) -> np.ndarray:
        """(n, D) float32 or float16, unit rows; read anew each time."""
        return self._tensor(VECTORS)

    def _tensor(self, name: str) -> np.ndarray:
        with safe_open(self.file, "numpy") as file:
            return file.get_tensor(name)


class Shards:
    """The shards of a folder, in order; those that are there.

    Args:
        folder: that `embed_shards` filled, or is filling.

    Raises:
        InvalidRequest: it holds no shards.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.plan = Plan.read(self.folder)

    def __iter__(self) -> Iterator[Shard]:
        for number in range(self.plan.shards):
            shard = find_shard(self.folder, self.plan, number)
            if shard is not None:
                yield shard

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Numbers of the shards that are not there."""
        there = {shard.number for shard in self}
        return tuple(number for number in range(self.plan.shards) if number not in there)

    def require_all(self) -> None:
        """Refuses to go on with a part.

        Raises:
            InvalidRequest: shards are missing.
        """
        if self.missing:
            raise InvalidRequest(
                f"{self.folder} lacks {len(self.missing)} of {self.plan.shards} shards: run the same `nnclr embed` "
                "again, which makes what is missing."
            )


def open_shards(folder: Path) -> Shards:
    """The shards that a bulk run has written.

    Raises:
        InvalidRequest: the folder holds none.
    """
    return Shards(folder)


def write_shard(
    folder: Path,
    plan: Plan,
    number: int,
    vectors: np.ndarray,
    pictures: Sequence[Picture],
    broken: Sequence[tuple[str, str]],
) -> None:
    """Writes a shard; it is on disk when this returns.

    Args:
        vectors: (n, D) float, unit rows.
        images: n.
        broken: (path, reason) of the part's other images.

    Raises:
        DiskFull: nothing was written.
    """
    tensors = {
        VECTORS: np.ascontiguousarray(vectors, PRECISIONS[plan.precision]),
        PICTURES: _json([[one.source, one.path, one.size, one.mtime] for one in pictures]),
        BROKEN: _json(list(broken)),
    }
    # a single entry: of several, safetensors leaves the order to chance, and equal shards are to have equal bytes
    content = save(tensors, {SHARD: _which(plan, number)})
    with written_whole(_file(folder, number)) as file:
        file.write(content)


def find_shard(folder: Path, plan: Plan, number: int) -> Shard | None:
    """A shard of the plan; None where there is none, or something else, and it has yet to be made."""
    path = _file(folder, number)
    if not path.exists():
        return None
    try:
        with safe_open(path, "numpy") as file:
            header, (count, dim) = file.metadata() or {}, file.get_slice(VECTORS).get_shape()
    except (SafetensorError, ValueError, OSError):
        return None
    belongs = header.get(SHARD) == _which(plan, number) and dim == plan.dim
    return Shard(plan, number, path, count) if belongs else None


def _which(plan: Plan, number: int) -> str:
    return f"{plan.id} {number}"


def _json(value: Any) -> np.ndarray:
    """As uint8; ASCII, so that a name that is no UTF-8 is kept as its escapes."""
    return np.frombuffer(json.dumps(value).encode("ascii"), np.uint8)


def _file(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05}.safetensors"
