"""The plan of a bulk run: its encoder and its shards. It is written first and never changes.

places = Places.of(["photos", "more.tar"])
plan = ShardPlan.begin(folder, encoder, places)
plan.shards                         # number of shards
for number, images, named in plan.parts(folder, places, [3, 4]): ...

A shard is a stretch of one archive or of the listing of one folder. The plan has the path at which each begins, so a
process walks only to its own stretches, and no process holds the list of all images.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import dropwhile, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from nnclr_hub.bulk.atomic_file import written_whole
from nnclr_hub.errors import ImageError, InvalidRequest, NoImages
from nnclr_hub.images.listing import EXPECTED, find_units, in_tiles, is_archive, open_unit, prefixed_keys
from nnclr_hub.images.reading import PLAIN, ImageReading
from nnclr_hub.images.source import Place, Source
from nnclr_hub.images.tiles import Tiling
from nnclr_hub.json_text import MALFORMED, parse_json, what_is_wrong
from nnclr_hub.store.spec import Embeds

PLAN = "plan.json"
FORMAT, VERSION = "nnclr_hub shards", 6
PRECISIONS = {"f32": np.float32, "f16": np.float16}
SHARD_SIZE = 4096
TILE = re.compile(r"#\d+,\d+,\d+,\d+$")  # the end of the path of a tile
# plan.json: types of the fields except places and shards
KINDS = {"name": str, "fingerprint": str, "embed_dim": int, "precision": str, "shard_size": int, "units": list}


def check_form(precision: str, shard_size: int, part: tuple[int, int] = (1, 1)) -> None:
    """Raise InvalidRequest for an unknown precision, an empty shard, or a part (k, n) without 1 <= k <= n."""
    if precision not in PRECISIONS:
        raise InvalidRequest(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}.")
    if shard_size < 1:
        raise InvalidRequest(f"shard_size must be at least 1, got {shard_size}.")
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
class Places:
    """The archives and folders of a call.

    units: places that are listed together; see `find_units`.
    tiling, reading: how images are cut into tiles, if they are.
    """

    units: tuple[tuple[str, ...], ...]
    tiling: Tiling | None = None
    reading: ImageReading = PLAIN

    @classmethod
    def of(cls, given: Sequence[str | Path], tiling: Tiling | None = None, reading: ImageReading = PLAIN) -> Self:
        """Find the archives and folders at the given places."""
        return cls(tuple(find_units(given)), tiling, reading)

    def open(self, unit: int, start: str = "", skip: int = 0) -> tuple[list[Place], Iterator[Source]]:
        """Return the folders and archives of a unit, and its images from one on.

        With several archives, the keys of samples begin with the name of theirs.

        Args:
            start: path of the first image in a folder, which is walked from there.
            skip: number of images before the first one, for other units, in which names may repeat.

        Raises:
            NoImages: it is empty and the only one.
        """
        is_walked = os.path.isdir(self.units[unit][0])
        start = start if is_walked else ""
        try:
            found, images = open_unit(self.units[unit], start if self.tiling is None else TILE.sub("", start))
        except NoImages:
            if len(self.units) == 1:
                raise
            return [], iter(())
        if self.tiling is not None:
            tiles = in_tiles(images, self.tiling, self.reading)
            images = dropwhile(lambda one: start not in ("", one.path), tiles)
        if sum(is_archive(place) for places in self.units for place in places) > 1:
            images = prefixed_keys(images)
        return found, images if is_walked else islice(images, skip, None)


class Stretch(NamedTuple):
    """The images of a shard.

    unit: number of their archive or folder.
    first: path of the first one.
    images: their number.
    digest: see `digest_of`.
    """

    unit: int
    first: str
    images: int
    digest: str


def digest_of(images: Sequence[Source]) -> str:
    """Return a hash of some images, in hex, independent of their location.

    It covers names and sizes, and the bytes of the first one, because images of equal names and sizes may differ.
    """
    digest, numbers = hashlib.sha256(), dict[Place, int]()
    for one in images:
        number = numbers.setdefault(one.place, len(numbers))
        digest.update(f"{number}\0{one.path}\0{one.size}\n".encode("utf-8", "surrogateescape"))
    for one in images[:1]:
        try:
            if one.box is None:  # the file of a tile may be too large to read
                digest.update(one.read())
        except (OSError, ImageError):  # its shard reports the error
            digest.update(b"-")
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class ShardPlan:
    """The contents of a folder of shards.

    name: the encoder's source; this field and the next two have the names that encoders use.
    fingerprint: fingerprint of the encoder.
    embed_dim: D, length of a vector.
    precision: "f32" or "f16", of the stored vectors.
    shard_size: images per shard; the last shard of an archive or folder has the rest.
    units: the number of places of each unit.
    places: folders and archives of the images.
    stretches: the images of each shard.
    """

    name: str
    fingerprint: str
    embed_dim: int
    precision: str
    shard_size: int
    units: tuple[int, ...]
    places: tuple[Place, ...]
    stretches: tuple[Stretch, ...]

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.stretches)

    def images(self, numbers: Iterable[int] | None = None) -> int:
        """Return the number of images of some shards, or of all, with those that cannot be read."""
        return sum(self.stretches[number].images for number in (range(self.shards) if numbers is None else numbers))

    @cached_property
    def id(self) -> str:
        """16 hex digits that each shard records: a hash of all fields except the places and the encoder's name."""
        fields = [getattr(self, name) for name in sorted(KINDS) if name != "name"]
        stretches = [[one.unit, one.images, one.digest] for one in self.stretches]
        return hashlib.sha256(json.dumps([fields, stretches]).encode()).hexdigest()[:16]

    @classmethod
    def begin(
        cls, folder: Path, encoder: Embeds, places: Places, *, precision: str = "f32", shard_size: int = SHARD_SIZE
    ) -> Self:
        """Read the plan of a folder, or make it: list all images, a shard at a time.

        Raises:
            InvalidRequest: the folder has another plan, the form is invalid, or see `check_folder`.
            NoImages: there are no images.
        """
        check_form(precision, shard_size)
        check_folder(folder)
        wanted = (encoder.name, encoder.fingerprint, encoder.embed_dim, precision, shard_size)
        if not (folder / PLAN).exists():
            units, found, stretches = [], [], []
            for unit in range(len(places.units)):
                own, images = places.open(unit)
                units.append(len(own))
                found += own
                while part := list(islice(images, shard_size)):
                    stretches.append(Stretch(unit, part[0].path, len(part), digest_of(part)))
            if not stretches:
                raise NoImages(f"There are no images; {EXPECTED}.")
            cls(*wanted, tuple(units), tuple(found), tuple(stretches))._write(folder)
        there = cls.read(folder)  # another process may have been first
        there._check(wanted, places, folder)
        return there

    def _write(self, folder: Path) -> None:
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError as error:  # although its parent exists, as in /proc
            raise InvalidRequest(f"{folder} cannot be created in {folder.parent}; use another --out.") from error
        fields: dict[str, Any] = {name: getattr(self, name) for name in KINDS}
        fields["places"] = [{**asdict(place), "left_out": ()} for place in self.places]
        fields["shards"] = self.stretches
        with written_whole(folder / PLAN, first=True) as file:
            file.write(json.dumps({"format": FORMAT, "version": VERSION, **fields}, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the plan of a folder of shards.

        Raises:
            InvalidRequest: there is no plan, or it is invalid.
        """
        path = folder / PLAN
        try:
            given = parse_json(path.read_bytes())
            if given["format"] != FORMAT or given["version"] != VERSION:
                raise ValueError(f"it is {given['format']!r:.80}, version {given['version']!r:.80}")
            fields = {name: given[name] for name in KINDS}
            for name, kind in KINDS.items():
                if type(fields[name]) is not kind:
                    raise ValueError(f"{name} is {fields[name]!r:.80}")
            check_form(fields["precision"], fields["shard_size"])
            fields["units"] = tuple(map(int, fields["units"]))
            places = tuple(Place(**{**one, "left_out": ()}) for one in given["places"])
            stretches = tuple(Stretch(int(one[0]), str(one[1]), int(one[2]), str(one[3])) for one in given["shards"])
            return cls(**fields, places=places, stretches=stretches)
        except FileNotFoundError as error:
            raise InvalidRequest(
                f"{folder} has no {PLAN}; expected a folder of shards that `nnclr embed --out` wrote."
            ) from error
        except MALFORMED as error:
            raise InvalidRequest(f"{path} is not a valid plan ({what_is_wrong(error)}); use a new folder.") from error

    def _check(self, wanted: tuple[str, str, int, str, int], places: Places, folder: Path) -> None:
        name, fingerprint, _, precision, shard_size = wanted
        if self.fingerprint != fingerprint:
            raise InvalidRequest(
                f"{folder} contains vectors of {self.name} ({self.fingerprint[:8]}), not of {name} "
                f"({fingerprint[:8]}); use another --out, or --model {self.name}."
            )
        for option, was, now in (
            ("--shard-size", self.shard_size, shard_size),
            ("--precision", self.precision, precision),
        ):
            if was != now:
                raise InvalidRequest(f"{folder} was started with {option} {was}; use the same value, or another --out.")
        if len(places.units) != len(self.units):
            raise self._other_images(folder)

    def _other_images(self, folder: Path) -> InvalidRequest:
        return InvalidRequest(
            f"{folder} was started for {self.images()} images, and now there are other images; use another --out, or "
            f"delete {folder}. For a folder that changes, use `nnclr index`."
        )

    def parts(
        self, folder: Path, places: Places, numbers: Iterable[int]
    ) -> Iterator[tuple[int, list[Source], list[Source]]]:
        """Yield each of these shards (ascending): its number, its images at the places of this call, and the same
        images at those of the plan, which may have been made on another machine.

        Raises:
            InvalidRequest: the images of a shard are not those of the plan.
        """
        for unit, group in groupby(numbers, key=lambda number: self.stretches[number].unit):
            wanted, before = list(group), sum(self.units[:unit])
            earlier = sum(stretch.images for stretch in self.stretches[: wanted[0]] if stretch.unit == unit)
            found, images = places.open(unit, self.stretches[wanted[0]].first, earlier)
            if len(found) != self.units[unit]:
                raise self._other_images(folder)
            make = set(wanted)
            planned = dict(zip(found, self.places[before:], strict=False))
            for number in range(wanted[0], wanted[-1] + 1):
                stretch = self.stretches[number]
                part = list(islice(images, stretch.images))
                is_last = number + 1 == self.shards or self.stretches[number + 1].unit != unit
                if is_last and next(images, None) is not None:
                    raise self._other_images(folder)
                if number in make:
                    if len(part) != stretch.images or digest_of(part) != stretch.digest:
                        raise self._other_images(folder)
                    yield number, part, [replace(one, place=planned[one.place]) for one in part]
