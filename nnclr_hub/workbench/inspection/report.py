"""report.html: the findings as one page that loads nothing, with a map, contact sheets and tables.

The only script draws the map and shows the image under the pointer. Its images are tiles of one embedded image.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.plural import counted
from nnclr_hub.workbench.bench import Inspected, LocalBench, Report
from nnclr_hub.workbench.inspection.findings import (
    FINDINGS,
    Entry,
    Finding,
    InspectionRequest,
    flagged,
    inspect_subject,
    items_of,
    write_fields,
    write_findings,
)
from nnclr_hub.workbench.inspection.subject import Subject, collection_subject, one_label_each
from nnclr_hub.workbench.inspections import KeptInspection, keep_inspection

SHOWN = 24  # images of a contact sheet
GROUPS, IN_GROUP = 12, 6  # groups of duplicates that are shown, and images of each
ROWS = 15  # of a table
SPRITE, ACROSS = 48, 64  # pixels of a tile on the image of the map, and tiles per row
MOST_TILES = ACROSS * ACROSS  # items with an image on the map
TEMPLATE = "report_template.html"


def inspect_and_report(bench: LocalBench, request: InspectionRequest, folder: Path, report: Report) -> Inspected:
    """Inspect a collection, and write report.html to a folder; see `Bench.inspect`."""
    collection = bench.collection(request.collection)
    labels = None if request.labels is None else one_label_each(request.labels)
    options: Any = {"labels": labels, "field": request.field, "parts": request.parts}
    options |= {"write_fields": request.write_fields}
    subject = collection_subject(collection, **options, report=report)
    kept = inspect_subject(subject, request.label_next, report=report)
    if request.write_fields:
        write = partial(bench.update_each, collection.name)
        kept = write_fields(collection, kept, write, progress=report("writing"))
        keep_inspection(bench.store.records, kept)
    return write_inspection(kept, subject, folder)


def write_inspection(kept: KeptInspection, subject: Subject, folder: Path) -> Inspected:
    """Write findings.json, the tables and report.html to a folder, which is created."""
    findings, paths = dict(kept.findings), dict(zip(subject.items, subject.paths or subject.items, strict=True))
    files = write_findings(findings, folder, paths)
    return Inspected(findings, paths, str(write_report(kept, subject, folder)), files)


def write_report(kept: KeptInspection, subject: Subject, folder: Path) -> Path:
    """Write report.html to a folder and return it."""
    page = files("nnclr_hub.workbench.inspection").joinpath(TEMPLATE).read_text(encoding="utf-8")
    parts = {"title": escape(subject.title), "steps": _steps(kept), "summary": _summary(kept)}
    parts["sections"] = _sections(kept, subject)
    for name, text in (parts | {"map": _map_data(kept, subject)}).items():
        page = page.replace(f"{{{{{name}}}}}", text)
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")  # file names may be other bytes
    return path


def _steps(kept: KeptInspection) -> str:
    """Say what to do next, each with a link to its images."""
    lines = [
        f'<li><a href="#{_anchor(finding.title)}">{escape(finding.title)}</a> ({number}): {escape(finding.step)}.</li>'
        for finding in FINDINGS
        if finding.step and (number := len(flagged(kept.findings, finding.name)))
    ]
    return f"<ol>{''.join(lines)}</ol>" if lines else "<p>Nothing: the inspection found no problem.</p>"


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
        "Labeled": f"{labeled} in {counted(len(found['classes']), 'class', 'classes')}" if labeled else "none",
        "Suspect labels": count["suspect_labels"],
    }
    if accuracy := found["accuracy"]:
        interval = f"(95% interval {accuracy['low']:.1%} to {accuracy['high']:.1%})"
        rows["Cross-validated accuracy"] = f"{accuracy['top1']:.1%} {interval}"
    rows["Encoder"] = found["model"]
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in rows.items())


def _sections(kept: KeptInspection, subject: Subject) -> str:
    tiles = {item: one.tile for item, one in zip(subject.items, subject.scanned, strict=True) if one}
    sections: dict[str, str] = {}  # by title: exact and near duplicates have one section
    for finding in FINDINGS:
        entries = kept.findings[finding.name]
        if finding.name == "suspect_labels":  # the others have low scores, unlike outliers that are not flagged
            entries = flagged(kept.findings, finding.name)
        if entries:
            before = sections.get(finding.title) or f"<p>{escape(finding.note.format_map(kept.findings))}</p>"
            sections[finding.title] = before + _body(finding, entries, tiles)
    return "\n".join(
        f'<section id="{_anchor(title)}"><h2>{escape(title)}</h2>{body}</section>' for title, body in sections.items()
    )


def _body(finding: Finding, entries: Sequence[Entry], tiles: dict[str, bytes]) -> str:
    if finding.shown == "table":
        columns = finding.columns if len(finding.columns) > 1 else ("file", *finding.columns)
        rows = [row for one in entries[:ROWS] for row in finding.rows(one)]
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    if finding.shown == "groups":
        groups = ((list(items_of(one))[:IN_GROUP], finding.captions(one)) for one in entries[:GROUPS])
        sheets = "".join(_sheet(items, captions, tiles, "group") for items, captions in groups)
        return f'<div class="groups">{sheets}</div>'
    shown = entries[:SHOWN]
    items = [one.get("medoid") or one["item"] for one in shown]
    return _sheet(items, [caption for one in shown for caption in finding.captions(one)], tiles)


def _sheet(items: Sequence[str], captions: Sequence[str], tiles: dict[str, bytes], kind: str = "") -> str:
    figures = []
    for item, caption in zip(items, captions, strict=False):
        name, image = escape(item), '<span class="none"></span>'
        if item in tiles:
            image = f'<img alt="{name}" src="data:image/jpeg;base64,{base64.b64encode(tiles[item]).decode()}">'
        text = f"<b>{escape(caption)}</b>" if caption else ""
        figures.append(f'<figure title="{name}">{image}<figcaption>{text}<span>{name}</span></figcaption></figure>')
    return f'<div class="sheet {kind}">{"".join(figures)}</div>'


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
