"""The plan of a bulk run: which images, by which encoder, cut into how many shards. Written first, never changed.

plan = Plan.of(encoder, sources, images, precision="f32", shard_size=4096).begin(folder)
plan.shards                         # how many
plan.part(images, 3)              # those of shard 3
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from nnclr_hub.bulk.pictures import Picture, Source, digest_of
from nnclr_hub.bulk.writing import written_whole
from nnclr_hub.errors import InvalidRequest

PLAN = "plan.json"
FORMAT, VERSION = "nnclr_hub shards", 1
PRECISIONS = {"f32": np.float32, "f16": np.float16}
SHARD_SIZE = 4096
KINDS = {
    "model": str,
    "fingerprint": str,
    "dim": int,
    "precision": str,
    "shard_size": int,
    "pictures": int,
    "listing": str,
}  # of what a plan holds beside its sources


def check_form(precision: str, shard_size: int) -> None:
    """Refuses vectors in a precision, or shards of a size, that there are not.

    Raises:
        InvalidRequest: names the possible ones.
    """
    if precision not in PRECISIONS:
        raise InvalidRequest(f"precision={precision!r} is none of {', '.join(PRECISIONS)}.")
    if shard_size < 1:
        raise InvalidRequest(f"shard_size={shard_size} is not possible: a shard holds 1 image or more.")


def check_part(part: tuple[int, int]) -> None:
    """Refuses a part (k, n) that is not one of n.

    Raises:
        InvalidRequest: it is not.
    """
    if not 1 <= part[0] <= part[1]:
        raise InvalidRequest(f"Part {part[0]} of {part[1]} is not possible: parts are 1/N to N/N.")


def check_folder(folder: Path) -> None:
    """Refuses a place that no shards can be put in.

    Raises:
        InvalidRequest: it is a file, holds other files, or the folder around it is not there.
    """
    if not folder.parent.is_dir():
        raise InvalidRequest(f"{folder.parent} is no folder: make it first, or name another --out.")
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(f"{folder} is a file: name a folder for the shards, or a FILE.npy.")
    if not folder.exists() or (folder / PLAN).exists():
        return
    ours = (".", PLAN)  # of others that begin at this moment
    if strangers := [one.name for one in folder.iterdir() if not one.name.startswith(ours)]:
        raise InvalidRequest(f"{folder} holds other files, such as {strangers[0]}: name a folder of its own.")


class Embeds(Protocol):
    """What a plan has to know of an encoder."""

    name: str

    @property
    def fingerprint(self) -> str: ...

    @property
    def embed_dim(self) -> int: ...


@dataclass(frozen=True)
class Plan:
    """What a folder of shards is to hold.

    model: the encoder's source.
    fingerprint: of the encoder.
    dim: D, length of a vector.
    precision: "f32" or "f16", in which vectors are kept.
    shard_size: images a shard; the last has the rest.
    images: how many there are.
    listing: SHA-256 of their names and sizes, in order, and of the bytes of a few; see `digest_of`.
    sources: where they lie.
    """

    model: str
    fingerprint: str
    dim: int
    precision: str
    shard_size: int
    pictures: int
    listing: str
    sources: tuple[Source, ...]

    def __post_init__(self) -> None:
        check_form(self.precision, self.shard_size)

    @classmethod
    def of(
        cls,
        encoder: Embeds,
        sources: Sequence[Source],
        pictures: Sequence[Picture],
        *,
        precision: str = "f32",
        shard_size: int = SHARD_SIZE,
    ) -> Self:
        """The plan for these images.

        Raises:
            InvalidRequest: another precision, or shards of less than one image.
        """
        return cls(
            model=encoder.name,
            fingerprint=encoder.fingerprint,
            dim=encoder.embed_dim,
            precision=precision,
            shard_size=shard_size,
            pictures=len(pictures),
            listing=digest_of(sources, pictures),
            sources=tuple(sources),
        )

    @property
    def name(self) -> str:
        """The encoder's source, as an encoder calls it."""
        return self.model

    @property
    def embed_dim(self) -> int:
        """D, as an encoder calls it."""
        return self.dim

    @property
    def shards(self) -> int:
        """How many shards there will be."""
        return -(-self.pictures // self.shard_size)

    @cached_property
    def id(self) -> str:
        """16 hex digits that each shard carries: of everything but where images lie and how the encoder is called."""
        named = [getattr(self, name) for name in sorted(KINDS) if name != "model"]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]

    def part(self, pictures: Sequence[Picture], number: int) -> Sequence[Picture]:
        """The images of a shard."""
        return pictures[number * self.shard_size : (number + 1) * self.shard_size]

    def begin(self, folder: Path) -> Plan:
        """Writes the plan into the folder, which is made; or takes up the one that is there, if it is the same.

        Raises:
            InvalidRequest: the folder holds another plan; or see `check_folder`.
        """
        check_folder(folder)
        folder.mkdir(exist_ok=True)
        if not (folder / PLAN).exists():
            text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)
            with written_whole(folder / PLAN, first=True) as file:
                file.write(text.encode())
        there = Plan.read(folder)
        if there.id != self.id:
            raise InvalidRequest(there._difference(self, folder))
        return there

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The plan of a folder of shards.

        Raises:
            InvalidRequest: there is none, or it makes no sense.
        """
        path = folder / PLAN
        try:
            given = json.loads(path.read_bytes())
            if given["format"] != FORMAT or given["version"] != VERSION:
                raise ValueError(f"{given['format']!r:.80}, version {given['version']!r:.80}")
            return cls._parsed(given)
        except FileNotFoundError as error:
            raise InvalidRequest(
                f"{folder} holds no shards ({PLAN} is missing): give a folder that `nnclr embed --out` wrote."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(f"{path} is no plan of shards ({str(error)[:150]}): name a new folder.") from error

    @classmethod
    def _parsed(cls, given: dict[str, Any]) -> Self:
        sources = tuple(Source(**one) for one in given["sources"])
        fields = {name: given[name] for name in KINDS}
        for name, kind in KINDS.items():
            if type(fields[name]) is not kind:
                raise ValueError(f"{name} is {fields[name]!r:.80}")
        return cls(**fields, sources=sources)

    def _difference(self, other: Plan, folder: Path) -> str:
        """Why what is asked for now cannot go on with this plan, and the ways on."""
        if self.fingerprint != other.fingerprint:
            return (
                f"{folder} holds vectors of {self.model} ({self.fingerprint[:8]}), not of {other.model} "
                f"({other.fingerprint[:8]}): name another --out, or go on with --model {self.model}."
            )
        for name, option in (("shard_size", "--shard-size"), ("precision", "--precision")):
            if getattr(self, name) != getattr(other, name):
                was = getattr(self, name)
                return f"{folder} was begun with {option} {was}: go on with that, or name another --out."
        which = f"are {other.pictures}" if other.pictures != self.pictures else "are other ones"
        return (
            f"{folder} was begun for {self.pictures} images, and now there {which}: name another --out for those of "
            f"now, or remove {folder}. (`nnclr index` keeps in step with a folder that changes.)"
        )
