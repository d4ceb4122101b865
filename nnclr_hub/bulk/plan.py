"""The plan of a bulk run: its images, encoder and shards. It is written first and never changes.

listing = Listing.of(["photos", "more.tar"])
plan = ShardPlan.of(encoder, listing, precision="f32", shard_size=4096).begin(folder)
plan.shards                         # number of shards
for number, images in plan.parts(listing, [3, 4]): ...

A shard has images of one archive or folder only, and these are listed one at a time. So no process holds the list of
all images, and one that makes a part of the shards lists only their archives.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Self

import numpy as np

from nnclr_hub.bulk.atomic_file import written_whole
from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.images.listing import EXPECTED, digest_of, find_images, find_units, in_tiles, is_archive
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import ImageSource, ListedImage
from nnclr_hub.images.tiles import Tiling
from nnclr_hub.store.spec import Embeds

PLAN = "plan.json"
FORMAT, VERSION = "nnclr_hub shards", 3
PRECISIONS = {"f32": np.float32, "f16": np.float16}
SHARD_SIZE = 4096
KINDS = {
    "model": str,
    "fingerprint": str,
    "dim": int,
    "precision": str,
    "shard_size": int,
    "units": list,
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


Found = tuple[list[ImageSource], list[ListedImage]]


@dataclass(frozen=True)
class Listing:
    """The images of a call, listed one archive or folder at a time.

    units: places that are listed together; see `find_units`.
    tiling, reading: how images are cut into tiles, if they are.
    """

    units: tuple[tuple[str, ...], ...]
    tiling: Tiling | None = None
    reading: ImageReading = PLAIN

    @classmethod
    def of(cls, given: Sequence[str | Path], tiling: Tiling | None = None, reading: ImageReading = PLAIN) -> Self:
        """Find the archives and folders at the given places; see `find_units`."""
        return cls(tuple(find_units(given)), tiling, reading)

    def unit(self, number: int) -> Found:
        """List one unit. With several archives, the keys of samples begin with the name of theirs.

        Raises:
            NoImages: it is empty and the only one.
        """
        try:
            sources, images = find_images(self.units[number])
        except NoImages:
            if len(self.units) == 1:
                raise
            return [], []
        if self.tiling is not None:
            images = in_tiles(sources, images, self.tiling, self.reading)
        if sum(is_archive(place) for unit in self.units for place in unit) > 1:
            names = [Path(source.absolute).name for source in sources]
            images = [replace(one, key=f"{names[one.source]}/{one.key}") if one.key else one for one in images]
        return sources, images


@dataclass(frozen=True)
class ShardPlan:
    """The contents of a folder of shards.

    model: the encoder's source.
    fingerprint: of the encoder.
    dim: D, length of a vector.
    precision: "f32" or "f16", of the stored vectors.
    shard_size: images per shard; the last shard of an archive or folder has the rest.
    units: for each unit of the listing the number of its images and of its sources.
    listing: SHA-256 of the names and sizes of all images, in order, and of the bytes of a few; see `digest_of`.
    sources: folders and archives of the images.
    """

    model: str
    fingerprint: str
    dim: int
    precision: str
    shard_size: int
    units: tuple[tuple[int, int], ...]
    listing: str
    sources: tuple[ImageSource, ...]

    def __post_init__(self) -> None:
        check_form(self.precision, self.shard_size)

    @classmethod
    def of(cls, encoder: Embeds, listing: Listing, *, precision: str = "f32", shard_size: int = SHARD_SIZE) -> Self:
        """Make the plan for these images.

        Raises:
            InvalidRequest: the precision or the shard size is invalid.
            NoImages: there are no images.
        """
        check_form(precision, shard_size)
        digest = hashlib.sha256()
        units: list[tuple[int, int]] = []
        sources: list[ImageSource] = []
        for number in range(len(listing.units)):
            found, images = listing.unit(number)
            digest.update(digest_of(found, images).encode())
            units.append((len(images), len(found)))
            sources += found
        if not sources:
            raise NoImages(f"There are no images; {EXPECTED}.")
        return cls(
            model=encoder.name,
            fingerprint=encoder.fingerprint,
            dim=encoder.embed_dim,
            precision=precision,
            shard_size=shard_size,
            units=tuple(units),
            listing=digest.hexdigest(),
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
    def images(self) -> int:
        """The number of images."""
        return sum(images for images, _ in self.units)

    @cached_property
    def _ends(self) -> list[int]:
        """The number of shards up to the end of each unit."""
        return list(accumulate(-(-images // self.shard_size) for images, _ in self.units))

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self._ends[-1]

    def size(self, number: int) -> int:
        """Return the number of images of a shard, with those that cannot be read."""
        unit, start = self._place(number)
        return min(self.shard_size, self.units[unit][0] - start)

    def _place(self, number: int) -> tuple[int, int]:
        """Return the unit of a shard, and the number of its first image there."""
        unit = bisect_right(self._ends, number)
        return unit, (number - (self._ends[unit - 1] if unit else 0)) * self.shard_size

    def parts(self, listing: Listing, numbers: Iterable[int]) -> Iterator[tuple[Found, list[tuple[int, list]]]]:
        """Yield for each unit of these shards (ascending) its sources and images, and (number, images) of each shard.

        The images have the numbers of their sources in the plan, and so have the yielded sources.
        """
        for unit, group in groupby(numbers, key=lambda number: self._place(number)[0]):
            found, images = listing.unit(unit)
            before = sum(sources for _, sources in self.units[:unit])
            images = [replace(one, source=before + one.source) for one in images] if before else images
            # with places of this call: the plan may have been made on another machine
            sources = [*self.sources[:before], *found, *self.sources[before + len(found) :]]
            starts = [(number, self._place(number)[1]) for number in group]
            yield (sources, images), [(number, images[start : start + self.shard_size]) for number, start in starts]

    @cached_property
    def id(self) -> str:
        """16 hex digits that each shard records: a hash of all fields except the sources and the encoder's name."""
        named = [getattr(self, name) for name in sorted(KINDS) if name != "model"]
        return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]

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
        fields["units"] = tuple((int(images), int(count)) for images, count in fields["units"])
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
