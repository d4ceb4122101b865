"""OUT/results.json, every figure with all that is needed to have it again, and OUT/results.md, its tables."""

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
SHOWN_APART = ("top5", "l2", "std", "queries")


@dataclass(frozen=True)
class Record:
    """One protocol, source and data set.

    protocol, source, fingerprint: what was scored, and how.
    data: name of the set.
    metric: what its figure is: top1, mean_per_class, map11, or map for retrieval.
    images: number a part.
    classes: how many.
    settings: of the protocol; seed, epochs, k, temperature among them.
    values: name -> figure; the first is the one that tables show.
    left_out: sentences about what does not count: classes that train lacks, files that cannot be read.
    seconds: that it took, without the features.
    digest: of the files, their labels and the metric.
    made: model folders that it wrote.
    """

    protocol: str
    source: str
    fingerprint: str
    data: str
    metric: str
    pictures: dict[str, int]
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
        """The figure that tables show; of a few-shot curve, the last point."""
        if f"{self.protocol}/{self.data}" in self.values:
            return self.values[f"{self.protocol}/{self.data}"]
        named = [(name.split("/")[-1], value) for name, value in self.values.items()]
        shown = [value for last, value in named if last not in SHOWN_APART or last == self.data]
        return shown[-1] if shown else float("nan")

    def same_as(self, other: Record) -> bool:
        """Whether both are of the same question."""
        return _question(self) == _question(other)


class Results:
    """The records of a folder; each is on the disk as soon as it is put.

    Args:
        folder: made with the first record, if it is not there.

    Raises:
        InvalidRequest: a results.json that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        try:
            there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            raise InvalidRequest(
                f"--out {folder} cannot be written ({error.strerror}): name another folder."
            ) from error
        self.records = self._read()
        self.skipped: list[str] = []  # sentences about what was asked and could not be answered

    def _read(self) -> list[Record]:
        if not self._path.exists():
            return []
        try:
            return [Record(**one) for one in json.loads(self._path.read_text("utf-8"))]
        except (ValueError, TypeError, OSError) as error:
            raise InvalidRequest(f"{self._path} is not one of ours ({error}): name another --out.") from error

    def answer(self, record: Record) -> Record | None:
        """What was answered to the same question before, if it was."""
        return next((one for one in self.records if one.same_as(record)), None)

    def put(self, record: Record) -> None:
        """Adds a record, in the place of an older answer to its question."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        others = self._read()  # another call may have put some meanwhile
        self.records = [one for one in others if not one.same_as(record)] + [record]
        replace_text(self._path, json.dumps([dataclasses.asdict(one) for one in self.records], indent=1) + "\n")
        self.write_page()

    def write_page(self) -> None:
        """results.md beside it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self._path.with_suffix(".md"), as_markdown(self.records, self.skipped))


def tables(records: Sequence[Record]) -> Iterator[Table]:
    """One a protocol: a row a source, a column a data set; figures in percent."""
    for title, data, rows in _grids(records):
        shown = Table("source", *data, title=title, title_justify="left", box=None, header_style="bold")
        for row in rows:
            shown.add_row(*row)
        yield shown


def as_markdown(records: Sequence[Record], skipped: Sequence[str] = ()) -> str:
    """The same as a page."""
    lines = ["# Results", "", "Percent. How they were made stands in results.json: commands, settings, versions.", ""]
    for title, data, rows in _grids(records):
        lines += [f"## {title}", "", f"| {' | '.join(['source', *data])} |", f"|---|{'---|' * len(data)}"]
        lines += [*(f"| {' | '.join(row)} |" for row in rows), ""]
    notes = dict.fromkeys(note for one in records for note in one.left_out)
    notes |= dict.fromkeys(f"skipped: {one}" for one in skipped)
    return "\n".join([*lines, *(f"- {note}" for note in notes)]).rstrip() + "\n"


def _grids(records: Sequence[Record]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """(protocol, headings of its columns, rows)."""
    for protocol in dict.fromkeys(one.protocol for one in records):
        ours = [one for one in records if one.protocol == protocol]
        columns = list(dict.fromkeys((one.data, one.metric) for one in ours))
        rows = []
        for source in dict.fromkeys(one.source for one in ours):
            found = {(one.data, one.metric): f"{100 * one.main:.1f}" for one in ours if one.source == source}
            rows.append([source, *(found.get(column, "") for column in columns)])
        title = f"{protocol}, with the most labels a class" if protocol == "few_shot" else protocol
        yield title, [f"{data} ({metric})" for data, metric in columns], rows


def versions() -> dict[str, str]:
    """Of what a figure depends on."""
    found = {"python": platform.python_version(), "nnclr_hub": nnclr_hub.__version__}
    for package in ("torch", "torchvision", "timm", "pillow", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _question(record: Record) -> tuple[str, ...]:
    settings = json.loads(json.dumps(record.settings))  # a tuple comes back from the disk as a list
    return (
        *(record.protocol, record.source, record.fingerprint, record.data),
        json.dumps(settings, sort_keys=True),
        record.digest,
    )
