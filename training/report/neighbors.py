"""The report's images of neighbors: a batch of queries, and how a query's neighbors change in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
CHECKPOINTS = 6  # columns of the second figure
QUERIES = 4  # rows of the second figure
SHOWN = 3  # neighbors of each query at a checkpoint


def draw_neighbors(lines: Sequence[Line]) -> str:
    """Return both figures as HTML; empty for a run without recorded neighbors.

    Args:
        lines: from RUN/neighbors.jsonl.
    """
    if not lines:
        return ""
    return (
        "<h2>Nearest neighbors in the support set</h2>"
        "<p>Left: the query. Right: its nearest neighbors in the support set at the last checkpoint, without the "
        f"image's own older embeddings.</p><div class=nn>{_batch(lines[-1])}</div>"
        "<h2>Evolution of the nearest neighbors</h2>"
        "<p>The same queries during training. In the paper neighbors change from color and texture to classes.</p>"
        f"<div class=nn>{_history(lines)}</div>"
    )


def _batch(line: Line) -> str:
    rows = []
    for query, found, similarity in zip(line["queries"], line["neighbors"], line["similarity"], strict=True):
        cells = [
            _tile(line, query, "query"),
            *(_tile(line, i, f"{s:.2f}") for i, s in zip(found, similarity, strict=True)),
        ]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _history(lines: Sequence[Line]) -> str:
    """Draw one row per query and one column per checkpoint, from the first to the last."""
    count = min(CHECKPOINTS, len(lines))
    moments = [lines[round(i * (len(lines) - 1) / max(1, count - 1))] for i in range(count)]
    head = "".join(f"<th colspan={SHOWN}>epoch {moment['epoch']:g}</th>" for moment in moments)
    rows = []
    for number, query in enumerate(moments[-1]["queries"][:QUERIES]):
        cells = [f"<td>{_tile(moments[-1], query, 'query')}</td>"]
        for moment in moments:
            found = moment["neighbors"][number][:SHOWN]
            tiles = [f"<td{' class=first' * (i == 0)}>{_tile(moment, one, '')}</td>" for i, one in enumerate(found)]
            cells += tiles + ["<td></td>"] * (SHOWN - len(tiles))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _tile(line: Line, number: int, caption: str) -> str:
    data = line["thumbnails"].get(str(number))
    if data is None:  # an initial random row
        return "<span class=none>none yet</span>"
    note = f"<br><small>{caption}</small>" if caption else ""
    return f"<img alt='image {number}' src='data:image/jpeg;base64,{data}'>{note}"
