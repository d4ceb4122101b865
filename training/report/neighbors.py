"""The paper's images of neighbors: a batch of queries, and how a query's neighbors change in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
MOMENTS = 6  # checkpoints shown of the evolution
FOLLOWED = 4  # queries shown of it
SHOWN = 3  # neighbors of each at a checkpoint


def draw_neighbors(lines: Sequence[Line]) -> str:
    """Both figures as HTML; empty for a run that recorded none.

    Args:
        lines: of RUN/neighbors.jsonl.
    """
    if not lines:
        return ""
    return (
        "<h2>Nearest neighbors in the support set</h2>"
        "<p>Left the query, then what the support set holds nearest to it, at the last checkpoint. The images' own "
        f"older embeddings are left out.</p><div class=nn>{_batch(lines[-1])}</div>"
        "<h2>Evolution of the nearest neighbors</h2>"
        "<p>The same queries as training proceeds. In the paper they go from color and texture to classes.</p>"
        f"<div class=nn>{_evolution(lines)}</div>"
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


def _evolution(lines: Sequence[Line]) -> str:
    """A row a query, a column a checkpoint; the first, the last, and some between."""
    count = min(MOMENTS, len(lines))
    moments = [lines[round(i * (len(lines) - 1) / max(1, count - 1))] for i in range(count)]
    head = "".join(f"<th colspan={SHOWN}>epoch {moment['epoch']:g}</th>" for moment in moments)
    rows = []
    for number, query in enumerate(moments[-1]["queries"][:FOLLOWED]):
        cells = [f"<td>{_tile(moments[-1], query, 'query')}</td>"]
        for moment in moments:
            found = moment["neighbors"][number][:SHOWN]
            tiles = [f"<td{' class=first' * (i == 0)}>{_tile(moment, one, '')}</td>" for i, one in enumerate(found)]
            cells += tiles + ["<td></td>"] * (SHOWN - len(tiles))
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _tile(line: Line, number: int, caption: str) -> str:
    data = line["thumbnails"].get(str(number))
    if data is None:  # a row of the random start
        return "<span class=none>none yet</span>"
    note = f"<br><small>{caption}</small>" if caption else ""
    return f"<img alt='image {number}' src='data:image/jpeg;base64,{data}'>{note}"
