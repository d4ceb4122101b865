"""report.html: the findings as one page that loads nothing, with a map, contact sheets and tables.

The only script draws the map and shows the image under the pointer. Its images are tiles of one embedded image.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nnclr_hub.workbench.inspection.findings import Findings

SHOWN = 24  # images of a contact sheet
GROUPS = 12  # groups of duplicates that are shown
ROWS = 15  # of a table
SPRITE, ACROSS = 48, 64  # pixels of a tile on the image of the map, and tiles per row
MOST_TILES = ACROSS * ACROSS  # items with an image on the map
TEMPLATE = "report_template.html"


def write_report(findings: Findings, folder: Path) -> Path:
    """Write report.html to a folder and return it."""
    template = files("nnclr_hub.workbench.inspection").joinpath(TEMPLATE).read_text(encoding="utf-8")
    subject = findings.subject
    page = (
        template.replace("{{title}}", escape(subject.title))
        .replace("{{summary}}", _summary(findings))
        .replace("{{sections}}", "\n".join(_sections(findings)))
        .replace("{{map}}", _map_data(findings))
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")  # file names may be other bytes
    return path


def _summary(findings: Findings) -> str:
    subject = findings.subject
    without = ", ".join(f"{count} {suffix}" for suffix, count in subject.left_out.items()) or "none"
    suspects = int(findings.suspects.issue.sum()) if findings.suspects else 0
    rows: list[tuple[str, Any]] = [
        ("Images", len(subject.items)),
        ("Files left out", without),
        ("Unreadable", len(subject.broken)),
        ("Exact duplicates", _groups(len(findings.exact))),
        ("Near duplicates", _groups(len(findings.near.groups))),
        ("Leaks between splits", len(findings.leaks)),
        ("Outliers", int(findings.flagged.sum())),
        ("Clusters", len(findings.clusters.share)),
        ("Labeled", f"{len(findings.labeled)} in {len(findings.classes)} classes" if len(findings.labeled) else "none"),
        ("Suspect labels", suspects),
        ("Encoder", subject.model),
    ]
    accuracy = findings.accuracy()
    if accuracy:
        shown = f"{accuracy['top1']:.1%} (95% interval {accuracy['low']:.1%} to {accuracy['high']:.1%})"
        rows.insert(-1, ("Cross-validated accuracy", shown))
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in rows)


def _groups(count: int) -> str:
    return f"{count} group{'s' * (count != 1)}"


def _sections(findings: Findings) -> list[str]:
    subject = findings.subject
    sections = []
    by_score = np.argsort(-findings.outlier_scores, kind="stable")[:SHOWN]
    if findings.near.groups or findings.exact:
        least = f"{findings.near.threshold:.3f}"
        note = f"Every pair has a score of at least {least}. duplicates.csv lists what can be deleted."
        groups = [(group, "equal pixels") for group in findings.exact[:GROUPS]]
        groups += [
            (group, f"score {score:.3f}")
            for group, score in zip(findings.near.groups[:GROUPS], findings.near.scores, strict=False)
        ]
        body = "".join(
            _sheet(findings, group[:6], [f"{len(group)} images, {text}", *("" for _ in group[1:6])], "group")
            for group, text in groups
        )
        body = f'<div class="groups">{body}</div>'
        sections.append(_section("Duplicates", note, body))
    if findings.leaks:
        captions = [(leak.items[:6], [*leak.parts[:6]]) for leak in findings.leaks[:GROUPS]]
        body = "".join(_sheet(findings, group, parts, "group") for group, parts in captions)
        note = "The same image in different splits. leaks.csv has all."
        sections.append(_section("Leaks", note, f'<div class="groups">{body}</div>'))
    note = "Images in thin regions, the most unusual first. outliers.csv has those that are flagged."
    captions = [f"{findings.outlier_scores[i]:.3f}" for i in by_score]
    sections.append(_section("Outliers", note, _sheet(findings, by_score, captions)))
    if findings.suspects is not None:
        order = [i for i in findings.suspects.order if findings.suspects.issue[i]][:SHOWN]
        rows = [findings.labeled[i] for i in order]
        captions = [
            f"{subject.labels[findings.labeled[i]]} → {findings.classes[findings.suspects.proposed[i]]}" for i in order
        ]
        note = "Given label → proposed label. suspect_labels.csv can be applied to a collection."
        sections.append(_section("Suspect labels", note, _sheet(findings, rows, captions) or "<p>None.</p>"))
        table = [
            (findings.classes[one.first], findings.classes[one.second], f"{one.share:.1%}", one.confused)
            for one in findings.overlap[:ROWS]
        ]
        note = "Pairs of classes that a linear probe takes for each other on images that it has not seen."
        sections.append(_section("Class overlap", note, _table(("class", "class", "share", "images"), table)))
    found = findings.clusters
    captions = [f"cluster {k}: {share:.1%}" for k, share in enumerate(found.share)]
    note = "The most central image of each cluster. clusters.csv has every image."
    sections.append(_section("Clusters", note, _sheet(findings, found.medoids, captions)))
    if len(findings.label_next):
        rows = findings.label_next[:SHOWN]
        captions = [str(rank) for rank in range(1, len(rows) + 1)]
        note = "Images that represent those without a label, in this order. label_next.csv has them all."
        sections.append(_section("Label next", note, _sheet(findings, rows, captions)))
    problems = [(i, one.facts.problems) for i, one in enumerate(subject.scanned) if one and one.facts.problems]
    if problems:
        captions = [", ".join(names) for _, names in problems[:SHOWN]]
        note = f"{len(problems)} images are empty, dark, bright, blurred, tiny or unusually long."
        sections.append(_section("Image problems", note, _sheet(findings, [i for i, _ in problems[:SHOWN]], captions)))
    if subject.broken:
        sections.append(_section("Unreadable files", "", _table(("file", "reason"), subject.broken[:ROWS])))
    return sections


def _section(title: str, note: str, body: str) -> str:
    return (
        f'<section id="{title.lower().replace(" ", "-")}"><h2>{escape(title)}</h2><p>{escape(note)}</p>{body}</section>'
    )


def _sheet(findings: Findings, rows: Sequence[Any] | np.ndarray, captions: Sequence[str], kind: str = "") -> str:
    if not len(rows):
        return ""
    tiles = []
    for row, caption in zip(rows, captions, strict=False):
        scanned, item = findings.subject.scanned[int(row)], findings.subject.items[int(row)]
        image = '<span class="none"></span>'
        if scanned is not None:
            data = base64.b64encode(scanned.tile).decode()
            image = f'<img alt="{escape(item)}" src="data:image/jpeg;base64,{data}">'
        text = f"<b>{escape(caption)}</b>" if caption else ""
        tiles.append(
            f'<figure title="{escape(item)}">{image}<figcaption>{text}<span>{escape(item)}</span></figcaption></figure>'
        )
    return f'<div class="sheet {kind}">{"".join(tiles)}</div>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _map_data(findings: Findings) -> str:
    """Return the data of the map as JSON that is safe inside a script element."""
    subject, count = findings.subject, len(findings.subject.items)
    shown = np.unique(np.linspace(0, count - 1, min(count, MOST_TILES)).round().astype(int))
    sprite = np.full(count, -1)
    sprite[shown] = np.arange(len(shown))
    # little-endian float32, as typed arrays of the browser read them
    points = base64.b64encode(findings.map.coordinates.astype("<f4").tobytes()).decode()
    colors: dict[str, Any] = {"cluster": findings.clusters.labels.tolist()}
    names: dict[str, list[str]] = {"cluster": [f"cluster {k}" for k in range(len(findings.clusters.share))]}
    if len(findings.classes) > 1:
        place = {name: k for k, name in enumerate(findings.classes)}
        colors["label"] = [place.get(label or "", -1) for label in subject.labels]
        names["label"] = list(findings.classes)
    colors["outlier"] = findings.flagged.astype(int).tolist()
    names["outlier"] = ["inside", "outlier"]
    data = {
        "points": points,
        "items": subject.items,
        "colors": colors,
        "names": names,
        "sprite": sprite.tolist(),
        "tile": SPRITE,
        "across": ACROSS,
        "tiles": "data:image/jpeg;base64," + base64.b64encode(_sprites(findings, shown)).decode(),
        "method": findings.map.method,
    }
    return json.dumps(data).replace("<", "\\u003c")


def _sprites(findings: Findings, rows: np.ndarray) -> bytes:
    """Return one JPEG with the tiles of these items."""
    across = min(ACROSS, len(rows))
    sheet = Image.new("RGB", (SPRITE * across, SPRITE * -(-len(rows) // ACROSS)))
    for place, row in enumerate(rows):
        scanned = findings.subject.scanned[row]
        if scanned is None:
            continue
        with Image.open(io.BytesIO(scanned.tile)) as image:
            image.draft("RGB", (SPRITE, SPRITE))
            tile = image.convert("RGB").resize((SPRITE, SPRITE))
        sheet.paste(tile, (SPRITE * (place % ACROSS), SPRITE * (place // ACROSS)))
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=60)
    return file.getvalue()
