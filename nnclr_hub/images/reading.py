"""ImageReading: which page and channels of an image file become pixels.

    reading = ImageReading(channels=(0, 2, 1), project="max")
    load_encoder("nnclr_resnet18_free_starter", reading=reading)
    load_encoder("nnclr_resnet18_free_starter?channels=0,2,1&project=max")      # the same

The text after the question mark belongs to the source of an encoder, so a collection, a probe and a run record it with
the encoder's name. It is part of the encoder's fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from nnclr_hub.errors import InvalidRequest

MAX_CHANNELS = 64
PROJECTIONS = ("", "max")
SCALES = ("depth", "range")


@dataclass(frozen=True)
class ImageReading:
    """Which part of a file is read, and how its values become 8 bits.

    channels: their numbers from 0, in this order; (): all. Three are red, green and blue, and one is gray.
    page: its number from 0; None: the first.
    project: "max" for the maximum over all pages; "": one page.
    scale: how 16-bit, signed and float values become 0 to 255: "depth" by the smallest usual depth that contains them
        (decision 0015), "range" from the minimum to the maximum of each channel. The window of a DICOM file goes first.
    """

    channels: tuple[int, ...] = ()
    page: int | None = None
    project: str = ""
    scale: str = "depth"

    def __post_init__(self) -> None:
        if len(self.channels) > MAX_CHANNELS or not all(_is_number(one) for one in self.channels):
            given = ",".join(map(str, self.channels))
            raise InvalidRequest(f"channels must be up to {MAX_CHANNELS} numbers, such as 0,2,1; got {given:.80}.")
        if self.page is not None and not _is_number(self.page):
            raise InvalidRequest(f"page must be a number from 0, got {self.page!r:.80}.")
        for name, allowed in (("project", PROJECTIONS), ("scale", SCALES)):
            if (value := getattr(self, name)) not in allowed:
                raise InvalidRequest(f"{name} must be one of {', '.join(filter(None, allowed))}, got {value!r:.80}.")
        if self.project and self.page is not None:
            raise InvalidRequest("Give page or project, not both: a projection covers all pages.")

    @classmethod
    def parse(cls, text: str, base: ImageReading | None = None) -> Self:
        """Read the form `channels=0,2,1&page=3`; `base` has the values that it leaves out."""
        given: dict[str, Any] = dict(part.split("=", 1) for part in text.split("&") if "=" in part)
        try:
            if "channels" in given:
                given["channels"] = tuple(int(one) for one in given["channels"].split(","))
            if "page" in given:
                given["page"] = int(given["page"])
            return (base or cls()).updated(**given)  # type: ignore[return-value]
        except (TypeError, ValueError) as error:
            if isinstance(error, InvalidRequest):
                raise
            raise InvalidRequest(f"{text!r:.80} must be like channels=0,2,1&page=3 or project=max.") from error

    @classmethod
    def of_source(cls, source: str) -> Self:
        """Return the reading in the source of an encoder."""
        from nnclr_hub.hub.sources import split_reading  # decoding processes do not need the sources

        return cls.parse(split_reading(source)[1])

    def __str__(self) -> str:
        parts = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        if self.channels:
            parts["channels"] = ",".join(map(str, self.channels))
        return "&".join(f"{name}={value}" for name, value in parts.items())

    def within(self, source: str) -> str:
        """Return the source of an encoder with this reading instead of the one in it."""
        from nnclr_hub.hub.sources import split_reading

        plain = split_reading(source)[0]
        return f"{plain}?{self}" if str(self) else plain

    def updated(self, **changes: Any) -> Self:
        """Return a copy with the changes that are not None; a page replaces a projection, and the reverse."""
        given = {name: value for name, value in changes.items() if value is not None}
        other = {"page": {"project": ""}, "project": {"page": None}}
        for name in [name for name in given if name in other]:
            given = {**other[name], **given}
        return replace(self, **given)


PLAIN = ImageReading()


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9
