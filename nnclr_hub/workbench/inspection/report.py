"""report.html: the findings as one page that loads nothing, with a map, contact sheets and tables.

The only script draws the map and shows the image under the pointer. Its images are tiles of one embedded image.
The page begins with a verdict and what to do next.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image

from nnclr_hub.plural import counted
from nnclr_hub.report_page import report_page, tile
from nnclr_hub.workbench.bench import Inspected, LocalBench, Report
from nnclr_hub.workbench.inspection.findings import (
    FINDINGS,
    Entry,
    Finding,
    InspectionRequest,
    flagged,
    inspect_request,
    items_of,
    write_findings,
)
from nnclr_hub.workbench.inspection.subject import Subject
from nnclr_hub.workbench.inspections import KeptInspection, keep_inspection

SHOWN = 24  # images of a contact sheet
GROUPS, IN_GROUP = 16, 5  # groups that are shown, and images of each
ROWS = 15  # in a table
SPRITE, ACROSS = 48, 64  # pixels of a tile on the image of the map, and tiles per row
MOST_TILES = ACROSS * ACROSS  # items with an image on the map
TEMPLATE = "report_template.html"


def inspect_and_report(bench: LocalBench, request: InspectionRequest, folder: Path, report: Report) -> Inspected:
    """Inspect a collection, and write report.html to a folder; see `Bench.inspect`."""
    kept, subject = inspect_request(bench, request, report)
    if request.write_fields:
        keep_inspection(bench.store.records, kept)
    return write_inspection(kept, subject, folder)


def write_inspection(kept: KeptInspection, subject: Subject, folder: Path) -> Inspected:
    """Write findings.json, the tables and report.html to a folder, which is created."""
    findings, paths = dict(kept.findings), dict(zip(subject.items, subject.paths or subject.items, strict=True))
    files = write_findings(findings, folder, paths)
    return Inspected(findings, paths, str(write_report(kept, subject, folder)), files)


def write_report(kept: KeptInspection, subject: Subject, folder: Path) -> Path:
    """Write report.html to a folder and return it."""
    body = files("nnclr_hub.workbench.inspection").joinpath(TEMPLATE).read_text(encoding="utf-8")
    steps = _steps(kept)
    listed = f"<ol>{''.join(steps)}</ol>" if steps else "<p>Nothing.</p>"
    parts = {"verdict": _verdict(kept, len(steps)), "steps": listed, "summary": _summary(kept)}
    parts["sections"] = _sections(kept, subject, folder)
    for name, text in (parts | {"map": _map_data(kept, subject)}).items():
        body = body.replace(f"{{{{{name}}}}}", text)
    path = folder / "report.html"
    # file names may be other bytes
    path.write_text(report_page(f"Inspection of {subject.title}", body), encoding="utf-8", errors="replace")
    return path


def _verdict(kept: KeptInspection, kinds: int) -> str:
    found = kept.findings
    text = f"{kinds} kind{'s' * (kinds != 1)} of finding to look at in" if kinds else "no problem was found in"
    text += f" {found['images']:,} image{'s' * (found['images'] != 1)}."
    if accuracy := found["accuracy"]:
        most = np.bincount(kept.labels[kept.labels >= 0]).max() / accuracy["labels"]
        text += f" A linear probe predicts {accuracy['top1']:.1%} of {accuracy['labels']:,} held-out labels "
        text += f"(95% interval {accuracy['low']:.1%} to {accuracy['high']:.1%}); the most common class has {most:.1%}."
    return f'<p class="verdict{" good" * (not kinds)}"><b>Verdict:</b> {text}</p>'


def _steps(kept: KeptInspection) -> list[str]:
    """Return what to do next, each with a link to its images."""
    numbers: dict[tuple[str, str], int] = {}  # exact and near duplicates need one step
    for finding in FINDINGS:
        if finding.step and (number := len(flagged(kept.findings, finding.name))):
            key = (finding.title, finding.step)
            numbers[key] = numbers.get(key, 0) + number
    return [
        f'<li><a href="#{_anchor(title)}">{escape(title)}</a> ({number}): {escape(step)}.</li>'
        for (title, step), number in numbers.items()
    ]


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _summary(kept: KeptInspection) -> str:
    found, labeled = kept.findings, int((kept.labels >= 0).sum())
    count = {finding.name: len(flagged(found, finding.name)) for finding in FINDINGS}
    exact, near = (f"{n} group{'s' * (n != 1)}" for n in (count["exact_duplicates"], count["near_duplicates"]))
    rows: dict[str, Any] = {
        "Images": found["images"],
        "Files left out": ", ".join(f"{n} {suffix}" for suffix, n in found["left_out"].items()) or "none",
        "Unreadable": count["broken"],
        "Exact duplicates": exact,
        "Near duplicates": near,
        "Leaks between splits": count["leaks"],
        "Outliers": count["outliers"],
        "Clusters": count["clusters"],
        "Labeled": f"{labeled:,} in {counted(len(found['classes']), 'class', 'classes')}" if labeled else "none",
        "Suspect labels": count["suspect_labels"],
    }
    rows["Encoder"] = found["model"]
    texts = {name: f"{value:,}" if isinstance(value, int) else str(value) for name, value in rows.items()}
    cells = {name: escape(text).replace("_", "_<wbr>") for name, text in texts.items()}  # names of encoders are long
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{cell}</dd></div>" for name, cell in cells.items())


def _sections(kept: KeptInspection, subject: Subject, folder: Path) -> str:
    tiles = {item: one.tile for item, one in zip(subject.items, subject.scanned, strict=True) if one}

    def draw(item: str, caption: str) -> str:
        return tile(item, tiles.get(item), caption, _address(subject, item, folder))

    sections: dict[str, str] = {}  # by title: exact and near duplicates have one section
    for finding in FINDINGS:
        if entries := flagged(kept.findings, finding.name):
            note = f'<p class="note">{escape(finding.note.format_map(kept.findings))}</p>'
            sections[finding.title] = sections.get(finding.title, note) + _body(finding, entries, draw)
    return "\n".join(
        f'<section id="{_anchor(title)}"><h2>{escape(title)}</h2>{body}</section>' for title, body in sections.items()
    )


def _address(subject: Subject, item: str, folder: Path) -> str:
    path = subject.root / item if subject.root else None
    return quote(os.fsencode(os.path.relpath(path, folder))) if path and path.is_file() else ""


def _body(finding: Finding, entries: Sequence[Entry], draw: Callable[[str, str], str]) -> str:
    """Draw the first entries of a finding. `draw` returns the image of an item with a caption."""
    if finding.shown == "table":
        columns = finding.columns if len(finding.columns) > 1 else ("file", *finding.columns)
        rows = [row for one in entries[:ROWS] for row in finding.rows(one)]
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        shown, text = len(rows), f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
    elif finding.shown == "groups":
        shown, text = min(GROUPS, len(entries)), '<div class="groups">'
        for one in entries[:GROUPS]:
            group = "".join(map(draw, islice(items_of(one), IN_GROUP), finding.captions(one)))
            text += f'<div class="group">{group}</div>'
        text += "</div>"
    else:
        shown, text = min(SHOWN, len(entries)), '<div class="sheet">'
        for one in entries[:SHOWN]:
            text += "".join(map(draw, items_of(one), finding.captions(one)))
        text += "</div>"
    return text + (f'<p class="note">The first {shown} of {len(entries)}.</p>' if shown < len(entries) else "")


def _map_data(kept: KeptInspection, subject: Subject) -> str:
    """Return the data of the map as JSON that is safe inside a script element."""
    count, found = len(kept.ids), kept.findings
    shown = np.unique(np.linspace(0, count - 1, min(count, MOST_TILES)).round().astype(int))
    sprite = np.full(count, -1)
    sprite[shown] = np.arange(len(shown))
    colors: dict[str, Any] = {"cluster": kept.clusters.tolist()}
    names = {"cluster": [f"cluster {one['cluster']}" for one in found["clusters"]]}
    if len(found["classes"]) > 1:
        colors["label"], names["label"] = kept.labels.tolist(), found["classes"]
    odd = {one["item"] for one in flagged(found, "outliers")}
    colors["outlier"], names["outlier"] = [int(id in odd) for id in kept.ids], ["inside", "outlier"]
    data = {
        # little-endian float32, as typed arrays of the browser read them
        "points": base64.b64encode(kept.coordinates.astype("<f4").tobytes()).decode(),
        "items": kept.ids,
        "colors": colors,
        "names": names,
        "sprite": sprite.tolist(),
        "tile": SPRITE,
        "across": ACROSS,
        "tiles": "data:image/jpeg;base64," + base64.b64encode(_sprites(subject, shown)).decode(),
    }
    return json.dumps(data).replace("<", "\\u003c")


def _sprites(subject: Subject, rows: np.ndarray) -> bytes:
    """Return one JPEG with the tiles of these items."""
    sheet = Image.new("RGB", (SPRITE * min(ACROSS, len(rows)), SPRITE * -(-len(rows) // ACROSS)))
    for place, row in enumerate(rows):
        if (scanned := subject.scanned[row]) is not None:
            with Image.open(io.BytesIO(scanned.tile)) as image:
                image.draft("RGB", (SPRITE, SPRITE))
                tile = image.convert("RGB").resize((SPRITE, SPRITE))
            sheet.paste(tile, (SPRITE * (place % ACROSS), SPRITE * (place // ACROSS)))
    sheet.save(file := io.BytesIO(), "JPEG", quality=60)
    return file.getvalue()
