"""The plan of a bulk run: its images, encoder and shards. It is written first and never changes.

plan = ShardPlan.of(encoder, sources, images, precision="f32", shard_size=4096).begin(folder)
plan.shards                         # number of shards
plan.part(images, 3)                # those of shard 3
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from nnclr_hub.bulk.atomic_file import written_whole
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.listing import digest_of
from nnclr_hub.images.source import ImageSource, ListedImage
from nnclr_hub.store.spec import Embeds

PLAN = "plan.json"
FORMAT, VERSION = "nnclr_hub shards", 2
PRECISIONS = {"f32": np.float32, "f16": np.float16}
SHARD_SIZE = 4096
KINDS = {
    "model": str,
    "fingerprint": str,
    "dim": int,
    "precision": str,
    "shard_size": int,
    "images": int,
    "listing": str,
}  # types of the fields in plan.json, except sources


def check_form(precision: str, shard_size: int) -> None:
    """Check the precision of vectors and the size of shards.

    Raises:
        InvalidRequest: one is invalid.
    """
    if precision not in PRECISIONS:
        raise InvalidRequest(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")
    if shard_size < 1:
        raise InvalidRequest(f"shard_size must be at least 1, got {shard_size}.")


def check_part(part: tuple[int, int]) -> None:
    """Check a part (k, n).

    Raises:
        InvalidRequest: k is not from 1 to n.
    """
    if not 1 <= part[0] <= part[1]:
        raise InvalidRequest(f"Parts are numbered 1/N to N/N, got {part[0]}/{part[1]}.")


def check_folder(folder: Path) -> None:
    """Check that a folder can contain shards.

    Raises:
        InvalidRequest: it is a file, contains other files, or its parent folder does not exist.
    """
    if not folder.parent.is_dir():
        raise InvalidRequest(f"The folder {folder.parent} does not exist; create it first, or use another --out.")
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(f"{folder} is a file; use a folder for the shards, or a FILE.npy.")
    if not folder.exists() or (folder / PLAN).exists():
        return
    ours = (".", PLAN)  # temporary files of processes that start at the same time
    if strangers := [one.name for one in folder.iterdir() if not one.name.startswith(ours)]:
        raise InvalidRequest(f"{folder} contains other files, such as {strangers[0]}; use a new folder.")


@dataclass(frozen=True)
class ShardPlan:
    """The contents of a folder of shards.

    model: the encoder's source.
    fingerprint: of the encoder.
    dim: D, length of a vector.
    precision: "f32" or "f16", of the stored vectors.
    shard_size: images per shard; the last shard has the rest.
    images: number of images.
    listing: SHA-256 of their names and sizes, in order, and of the bytes of a few; see `digest_of`.
    sources: folders and archives of the images.
    """

    model: str
    fingerprint: str
    dim: int
    precision: str
    shard_size: int
    images: int
    listing: str
    sources: tuple[ImageSource, ...]

    def __post_init__(self) -> None:
        check_form(self.precision, self.shard_size)

    @classmethod
    def of(
        cls,
        encoder: Embeds,
        sources: Sequence[ImageSource],
        images: Sequence[ListedImage],
        *,
        precision: str = "f32",
        shard_size: int = SHARD_SIZE,
    ) -> Self:
        """Make the plan for these images.

        Raises:
            InvalidRequest: the precision or the shard size is invalid.
        """
        return cls(
            model=encoder.name,
            fingerprint=encoder.fingerprint,
            dim=encoder.embed_dim,
            precision=precision,
            shard_size=shard_size,
            images=len(images),
            listing=digest_of(sources, images),
            sources=tuple(sources),
        )

    @property
    def name(self) -> str:
        """The encoder's source, under the name that encoders use."""
        return self.model

    @property
    def embed_dim(self) -> int:
        """D, under the name that encoders use."""
        return self.dim

    @property
    def shards(self) -> int:
        """The number of shards."""
        return -(-self.images // self.shard_size)

    @cached_property
    def id(self) -> str:
        """16 hex digits that each shard records: a hash of all fields except the sources and the encoder's name."""
        named = [getattr(self, name) for name in sorted(KINDS) if name != "model"]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]

    def part(self, images: Sequence[ListedImage], number: int) -> Sequence[ListedImage]:
        """Return the images of a shard."""
        return images[number * self.shard_size : (number + 1) * self.shard_size]

    def begin(self, folder: Path) -> ShardPlan:
        """Create the folder and write the plan, or check that the existing plan is the same.

        Raises:
            InvalidRequest: the folder has another plan; or see `check_folder`.
        """
        check_folder(folder)
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError as error:  # although its parent exists, as in /proc
            raise InvalidRequest(f"{folder} cannot be created in {folder.parent}; use another --out.") from error
        if not (folder / PLAN).exists():
            fields = {name: getattr(self, name) for name in KINDS}
            fields["sources"] = [
                {name: value for name, value in asdict(source).items() if name != "left_out"}  # not in the file format
                for source in self.sources
            ]
            text = json.dumps({"format": FORMAT, "version": VERSION, **fields}, indent=1)
            with written_whole(folder / PLAN, first=True) as file:
                file.write(text.encode())
        there = ShardPlan.read(folder)
        if there.id != self.id:
            raise InvalidRequest(there._difference(self, folder))
        return there

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the plan of a folder of shards.

        Raises:
            InvalidRequest: there is no plan, or it is invalid.
        """
        path = folder / PLAN
        try:
            given = json.loads(path.read_bytes())
            if given["format"] != FORMAT or given["version"] != VERSION:
                raise ValueError(f"{given['format']!r:.80}, version {given['version']!r:.80}")
            return cls._parsed(given)
        except FileNotFoundError as error:
            raise InvalidRequest(
                f"{folder} has no {PLAN}; expected a folder of shards that `nnclr embed --out` wrote."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{path} is not a valid plan ({str(error)[:150]}); use a new folder.") from error

    @classmethod
    def _parsed(cls, given: dict[str, Any]) -> Self:
        sources = tuple(ImageSource(**one) for one in given["sources"])
        fields = {name: given[name] for name in KINDS}
        for name, kind in KINDS.items():
            if type(fields[name]) is not kind:
                raise ValueError(f"{name} is {fields[name]!r:.80}")
        return cls(**fields, sources=sources)

    def _difference(self, other: ShardPlan, folder: Path) -> str:
        """Return a message that says why another plan cannot continue this one, and what to do."""
        if self.fingerprint != other.fingerprint:
            return (
                f"{folder} contains vectors of {self.model} ({self.fingerprint[:8]}), not of {other.model} "
                f"({other.fingerprint[:8]}); use another --out, or --model {self.model}."
            )
        for name, option in (("shard_size", "--shard-size"), ("precision", "--precision")):
            if getattr(self, name) != getattr(other, name):
                was = getattr(self, name)
                return f"{folder} was started with {option} {was}; use the same value, or another --out."
        now = f"{other.images} images" if other.images != self.images else "other images"
        return (
            f"{folder} was started for {self.images} images, and now there are {now}; use another --out, or delete "
            f"{folder}. For a folder that changes, use `nnclr index`."
        )
