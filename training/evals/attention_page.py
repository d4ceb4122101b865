"""OUT/attention.md: every score of the attention protocol with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .attention import BASELINES, METRICS, PARTS
from .results import EvaluationRecord

SCORES = [f"{part}/{metric}" for part in PARTS for metric in METRICS]
GAINS = [f"{part}/{metric}/over" for part in PARTS[:2] for metric in METRICS]
GAINS += [f"across/{metric}/over_control" for metric in METRICS]
Row = tuple[str, str, Mapping[str, float]]  # source, size, and values by "within/pointing", "within/pointing/low", ...


def as_markdown(records: Sequence[EvaluationRecord]) -> str:
    """Return a table of scores and a table of differences for each data set."""
    lines = ["# Attention, scored with boxes", "", "In brackets: 95% intervals from a bootstrap over images."]
    for data in dict.fromkeys(one.data for one in records):
        data_records = [one for one in records if one.data == data]
        counted = ", ".join(f"{number} {what}" for what, number in data_records[0].images.items())
        pairs, classes, covered = (
            f"{data_records[0].values[f'attention/{data}/{k}']:.0f}" for k in ("pairs", "classes", "covered")
        )
        lines += ["", f"## {data}", "", f"{counted}; {pairs} pairs, classes: {classes}.", ""]
        if covered != "0":
            lines[-1:] = [f"Boxes cover {covered} images completely; those have no AUROC.", ""]
        rows = [row for one in data_records for row in _rows(one)]
        lines += _table(rows, SCORES)
        rows = [row for row in rows if any(key in row[2] for key in GAINS)]
        if rows:
            lines += ["", "Gain over the Gaussian, and of across over the control, on the same images or pairs:", ""]
            lines += _table(rows, GAINS)
    return "\n".join(lines) + "\n"


def _rows(record: EvaluationRecord) -> Iterator[Row]:
    """Yield a row for each size; a baseline, which does not depend on the size, has one row."""
    start = f"attention/{record.data}/"
    named = {key.removeprefix(start): value for key, value in record.values.items() if key.startswith(start)}
    sizes = list(dict.fromkeys(key.partition("/")[0] for key in named if "/" in key))
    baseline = record.source in BASELINES
    for size in sizes[:1] if baseline else sizes:
        values = {key.removeprefix(f"{size}/"): value for key, value in named.items() if key.startswith(f"{size}/")}
        yield record.source, "-" if baseline else size, values


def _table(rows: Sequence[Row], keys: Sequence[str]) -> Iterator[str]:
    keys = [key for key in keys if any(key in values for _, _, values in rows)]
    yield f"| source | short side | {' | '.join(map(_heading, keys))} |"
    yield f"|---|---|{'---|' * len(keys)}"
    for source, size, values in rows:
        yield f"| {source} | {size} | {' | '.join(_cell(values, key) for key in keys)} |"


def _heading(key: str) -> str:
    part, metric, *over = key.split("/")
    against = {"over": " above Gaussian", "over_control": " above control"}[over[0]] if over else ""
    return f"{part}: {metric.replace('auroc', 'AUROC')}{against}"


def _cell(values: Mapping[str, float], key: str) -> str:
    if key not in values:
        return ""
    signed = "+" if "/over" in key else ""
    mean, low, high = (format(values[name], f"{signed}.3f") for name in (key, f"{key}/low", f"{key}/high"))
    return f"{mean} [{low}, {high}]"
