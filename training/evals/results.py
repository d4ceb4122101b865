"""OUT/results.json: every score with all that is needed to reproduce it. OUT/results.md: its tables."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import nnclr_hub
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.file_replacement import replace_file
from nnclr_hub.json_text import MALFORMED, parse_json, what_is_wrong
from nnclr_hub.probe.uncertainty import Difference, paired_difference

NAME = "results.json"
DETAILS = ("top5", "l2", "std", "queries")


@dataclass(frozen=True)
class EvaluationRecord:
    """Result of one protocol on one source and one data set.

    protocol, source, fingerprint: the protocol and the encoder.
    data: name of the set.
    metric: top1, mean_per_class, map11, or map for retrieval.
    images: number of images in each part.
    classes: number of classes.
    settings: settings of the protocol, such as seed, epochs, k and temperature.
    values: name -> score; the first is shown in tables.
    intervals: name -> 95% interval, for scores that are a mean over test images.
    left_out: notes about what does not count: classes that train lacks, unreadable files.
    seconds: run time, without computing the features.
    digest: hash of the files, their labels and the metric.
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
    command: str
    digest: str
    values: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0
    made: list[str] = field(default_factory=list)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    versions: dict[str, str] = field(default_factory=lambda: versions())

    @property
    def main_name(self) -> str | None:
        """Name of the score that tables show; for a few-shot curve, the last point."""
        if f"{self.protocol}/{self.data}" in self.values:
            return f"{self.protocol}/{self.data}"
        # a data set may have the name of a detail, such as std
        shown = [one for one in self.values if one.split("/")[-1] not in DETAILS or one.count("/") == 1]
        return shown[-1] if shown else None

    @property
    def main(self) -> float:
        """The score that tables show."""
        return self.values[self.main_name] if self.main_name else float("nan")

    @property
    def row(self) -> str:
        """Name of the record's row in tables: the source, and how its vectors were transformed."""
        vectors = self.settings.get("vectors", "raw")
        return self.source if vectors == "raw" else f"{self.source}, {vectors}"

    @property
    def key(self) -> str:
        """Hash of all that identifies the record: protocol, source, data and settings."""
        names = ("protocol", "source", "fingerprint", "data", "digest", "settings")
        # as JSON, because a tuple in the settings comes back from results.json as a list
        identity = json.dumps([getattr(self, name) for name in names], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Comparison:
    """Two records of the same protocol and images: the score of the first minus that of the other."""

    first: EvaluationRecord
    other: EvaluationRecord
    difference: Difference


class Results:
    """The records of a folder; each one is written to disk when it is added.

    Args:
        folder: created with the first record if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._path, self._each = folder, folder / NAME, folder / "each"
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

    def _read(self) -> list[EvaluationRecord]:
        if not self._path.exists():
            return []
        try:
            return [EvaluationRecord(**one) for one in parse_json(self._path.read_bytes())]
        except (OSError, *MALFORMED) as error:
            raise InvalidRequest(
                f"{self._path} was not written by nnclr eval ({what_is_wrong(error)}); choose another --out."
            ) from error

    def existing(self, record: EvaluationRecord) -> EvaluationRecord | None:
        """Return the stored record with the same protocol, source, data and settings, or None."""
        return next((one for one in self.records if one.key == record.key), None)

    def put(self, record: EvaluationRecord, each: Mapping[str, np.ndarray] | None = None) -> None:
        """Add a record, replacing an older one of the same kind.

        Args:
            record: the new one.
            each: name of a score -> (N,) float32, its value for each test image; stored in each/KEY.npz.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if each:
            self._each.mkdir(exist_ok=True)
            arrays: dict[str, Any] = {_array_name(key): one for key, one in each.items()}
            np.savez_compressed(self._each / f"{record.key}.npz", **arrays)
        others = self._read()  # another process may have added some
        self.records = [one for one in others if one.key != record.key] + [record]
        replace_file(self._path, json.dumps([dataclasses.asdict(one) for one in self.records], indent=1) + "\n")
        self.write_page()

    def values_of(self, record: EvaluationRecord) -> np.ndarray | None:
        """Return (N,) float32, the main score of each test image, if it was stored."""
        try:
            with np.load(self._each / f"{record.key}.npz") as stored:
                return stored[_array_name(record.main_name or "")]
        except (OSError, KeyError, ValueError):
            return None

    def differences(self, records: Sequence[EvaluationRecord] | None = None) -> list[Comparison]:
        """Compare each source with the first one of its protocol, on the same images.

        Args:
            records: those to compare; default all.
        """
        found = []
        for first, other in _pairs(self.records if records is None else records):
            one, two = self.values_of(first), self.values_of(other)
            if one is not None and two is not None and len(one) == len(two):
                found.append(Comparison(first, other, paired_difference(one, two)))
        return found

    def write_page(self) -> None:
        """Write results.md next to results.json."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        page = as_markdown(self.records, self.differences(), self.skipped)
        replace_file(self._path.with_suffix(".md"), page)


def tables(records: Sequence[EvaluationRecord], differences: Sequence[Comparison] = ()) -> Iterator[Table]:
    """Yield a table per protocol: a row per source, a column per data set, in percent; then those of differences."""
    for title, data, rows in _grids(records, differences):
        shown = Table("source", *data, title=title, title_justify="left", box=None, header_style="bold")
        for row in rows:
            shown.add_row(*row)
        yield shown


def as_markdown(
    records: Sequence[EvaluationRecord], differences: Sequence[Comparison], skipped: Sequence[str] = ()
) -> str:
    """Return the same tables as Markdown."""
    about = "Percent, with half the width of the 95% interval. results.json has the commands, settings and versions."
    lines = ["# Results", "", about, ""]
    for title, data, rows in _grids(records, differences):
        lines += [f"## {title}", "", *markdown_table(["source", *data], rows), ""]
    notes = dict.fromkeys(note for one in records for note in one.left_out)
    notes |= dict.fromkeys(f"skipped: {one}" for one in skipped)
    return "\n".join([*lines, *(f"- {note}" for note in notes)]).rstrip() + "\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def _grids(
    records: Sequence[EvaluationRecord], differences: Sequence[Comparison]
) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield title, columns and rows of each table; scores with other settings are in another one."""
    cells: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for one in records:
        cells.setdefault(_title(one, records), []).append((one.row, _cells(one)))
    for pair in differences:
        title = f"{_title(pair.first, records)}: {pair.first.row} minus each other source, on the same images"
        cells.setdefault(title, []).append((pair.other.row, {pair.first.data: _signed(pair.difference)}))
    for title, own in cells.items():
        yield title, *_grid(own)


def _title(record: EvaluationRecord, records: Sequence[EvaluationRecord]) -> str:
    """Return the protocol, with those of its settings in which the records differ."""
    others = [_settings(one) for one in records if one.protocol == record.protocol]
    differ = [
        f"{name} {value}" for name, value in _settings(record).items() if any(one.get(name) != value for one in others)
    ]
    return ", ".join([record.protocol, *differ])


def _settings(record: EvaluationRecord) -> dict[str, str]:
    """Return the settings as JSON, without `vectors`, which names the row."""
    return {name: json.dumps(value) for name, value in record.settings.items() if name != "vectors"}


def _grid(cells: Sequence[tuple[str, dict[str, str]]]) -> tuple[list[str], list[list[str]]]:
    columns = list(dict.fromkeys(column for _, own in cells for column in own))
    by_row: dict[str, dict[str, str]] = {}
    for row, own in cells:
        by_row.setdefault(row, {}).update(own)
    return columns, [[row, *(own.get(column, "") for column in columns)] for row, own in by_row.items()]


def _cells(record: EvaluationRecord) -> dict[str, str]:
    """Return what a table shows of a record, by column; of a few-shot curve each point, with its deviation."""
    data = f"{record.data} ({record.metric})"
    if record.protocol != "few_shot":
        return {data: in_percent(record)}
    points = {name.split("/")[-1]: name for name in record.values if not name.endswith("/std")}
    return {
        f"{data}, {shots} per class": f"{100 * record.values[name]:.1f} ± {100 * record.values[f'{name}/std']:.1f}"
        for shots, name in points.items()
    }


def _signed(difference: Difference) -> str:
    low, high = 100 * difference.low, 100 * difference.high
    p = "p < 0.001" if difference.p < 0.001 else f"p {difference.p:.1g}"
    return f"{100 * difference.mean:+.1f} ({low:+.1f} to {high:+.1f}), {p}"


def _array_name(score: str) -> str:
    return score.replace("/", "|")


def _pairs(records: Sequence[EvaluationRecord]) -> Iterator[tuple[EvaluationRecord, EvaluationRecord]]:
    firsts: dict[str, EvaluationRecord] = {}
    for record in records:
        same = json.dumps([record.protocol, record.digest, record.metric, _settings(record)], sort_keys=True)
        first = firsts.setdefault(same, record)
        if first is not record:
            yield first, record


def in_percent(record: EvaluationRecord) -> str:
    """Return the main score in percent, with half the width of its 95% interval if it has one."""
    interval = record.intervals.get(record.main_name or "")
    around = f" ± {50 * (interval[1] - interval[0]):.1f}" if interval else ""
    return f"{100 * record.main:.1f}{around}"


def versions() -> dict[str, str]:
    """Return the versions that a score depends on."""
    found = {"python": platform.python_version(), "nnclr_hub": nnclr_hub.__version__}
    for package in ("torch", "torchvision", "timm", "pillow", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
