"""OUT/results.json: every score with all that is needed to reproduce it. OUT/results.md: its tables."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.table import Table

import nnclr_hub
from nnclr_hub.errors import InvalidRequest

from ..monitor import replace_text

NAME = "results.json"
OLD_IMAGES = "pictures"  # the key of earlier versions
DETAILS = ("top5", "l2", "std", "queries")


@dataclass(frozen=True)
class Record:
    """Result of one protocol on one source and one data set.

    protocol, source, fingerprint: the protocol and the encoder.
    data: name of the set.
    metric: top1, mean_per_class, map11, or map for retrieval.
    images: number of images in each part.
    classes: number of classes.
    settings: of the protocol, such as seed, epochs, k and temperature.
    values: name -> score; the first is shown in tables.
    left_out: notes about what does not count: classes that train lacks, unreadable files.
    seconds: run time, without computing the features.
    digest: of the files, their labels and the metric.
    made: model folders that the protocol wrote.
    """

    protocol: str
    source: str
    fingerprint: str
    data: str
    metric: str
    images: dict[str, int]
    classes: int
    settings: dict[str, Any]
    values: dict[str, float]
    left_out: list[str]
    seconds: float
    command: str
    digest: str = ""
    made: list[str] = field(default_factory=list)
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    versions: dict[str, str] = field(default_factory=lambda: versions())

    @property
    def main(self) -> float:
        """The score that tables show; for a few-shot curve, the last point."""
        if f"{self.protocol}/{self.data}" in self.values:
            return self.values[f"{self.protocol}/{self.data}"]
        named = [(name.split("/")[-1], value) for name, value in self.values.items()]
        shown = [value for last, value in named if last not in DETAILS or last == self.data]
        return shown[-1] if shown else float("nan")

    def same_as(self, other: Record) -> bool:
        """Return whether both records have the same protocol, source, data and settings."""
        names = ("protocol", "source", "fingerprint", "data", "digest", "settings")
        # as JSON, because a tuple in the settings comes back from results.json as a list
        mine, theirs = (json.dumps([getattr(one, name) for name in names], sort_keys=True) for one in (self, other))
        return mine == theirs

    def as_json(self) -> dict[str, Any]:
        """Return the record for results.json and `--json`, with the key for `images` that earlier versions used."""
        return {**dataclasses.asdict(self), OLD_IMAGES: self.images}


class Results:
    """The records of a folder; each one is written to disk when it is added.

    Args:
        folder: created with the first record if it does not exist.

    Raises:
        InvalidRequest: an unreadable results.json, or a folder that is not writable.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        try:
            existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            raise InvalidRequest(
                f"--out {folder} cannot be written ({error.strerror}); choose another folder."
            ) from error
        self.records = self._read()
        self.skipped: list[str] = []  # notes about combinations that could not be computed

    def _read(self) -> list[Record]:
        if not self._path.exists():
            return []
        try:
            return [_read_record(one) for one in json.loads(self._path.read_text("utf-8"))]
        except (ValueError, TypeError, OSError) as error:
            raise InvalidRequest(
                f"{self._path} was not written by nnclr eval ({error}); choose another --out."
            ) from error

    def existing(self, record: Record) -> Record | None:
        """Return the stored record with the same protocol, source, data and settings, or None."""
        return next((one for one in self.records if one.same_as(record)), None)

    def put(self, record: Record) -> None:
        """Add a record, replacing an older one of the same kind."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        others = self._read()  # another process may have added some
        self.records = [one for one in others if not one.same_as(record)] + [record]
        replace_text(self._path, json.dumps([one.as_json() for one in self.records], indent=1) + "\n")
        self.write_page()

    def write_page(self) -> None:
        """Write results.md next to results.json."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self._path.with_suffix(".md"), as_markdown(self.records, self.skipped))


def tables(records: Sequence[Record]) -> Iterator[Table]:
    """Yield one table per protocol: a row per source, a column per data set, scores in percent."""
    for title, data, rows in _grids(records):
        shown = Table("source", *data, title=title, title_justify="left", box=None, header_style="bold")
        for row in rows:
            shown.add_row(*row)
        yield shown


def as_markdown(records: Sequence[Record], skipped: Sequence[str] = ()) -> str:
    """Return the same tables as Markdown."""
    lines = ["# Results", "", "Percent. results.json has the commands, settings and versions.", ""]
    for title, data, rows in _grids(records):
        lines += [f"## {title}", "", f"| {' | '.join(['source', *data])} |", f"|---|{'---|' * len(data)}"]
        lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    notes = dict.fromkeys(note for one in records for note in one.left_out)
    notes |= dict.fromkeys(f"skipped: {one}" for one in skipped)
    return "\n".join([*lines, *(f"- {note}" for note in notes)]).rstrip() + "\n"


def _grids(records: Sequence[Record]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield (protocol, column headings, rows)."""
    for protocol in dict.fromkeys(one.protocol for one in records):
        ours = [one for one in records if one.protocol == protocol]
        columns = list(dict.fromkeys((one.data, one.metric) for one in ours))
        rows = []
        for source in dict.fromkeys(one.source for one in ours):
            found = {(one.data, one.metric): f"{100 * one.main:.1f}" for one in ours if one.source == source}
            rows.append([source, *(found.get(column, "") for column in columns)])
        title = f"{protocol}, with the most labels per class" if protocol == "few_shot" else protocol
        yield title, [f"{data} ({metric})" for data, metric in columns], rows


def versions() -> dict[str, str]:
    """Return the versions that a score depends on."""
    found = {"python": platform.python_version(), "nnclr_hub": nnclr_hub.__version__}
    for package in ("torch", "torchvision", "timm", "pillow", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _read_record(stored: dict[str, Any]) -> Record:
    """Build a record from JSON, also from that of earlier versions."""
    images = stored.pop(OLD_IMAGES, None)
    return Record(**{"images": images, **stored})
