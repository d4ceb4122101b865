"""The rows of a table, and the images that they name: in a folder, in archives, at an address or in a collection.

rows = read_rows(LabelTable(Path("labels.csv")))
found = rows.match([Named("9f86d081", "/data/photos", "cat/a.jpg")])
found.cells                 # {"9f86d081": {"label": ("cat",)}}

The rules, for every table:

- A row names an image by its id, or else by its path. The path is relative to `root`, or else to the folder of the
  table, or else to the folder, archive or source of the image. Any number of the last parts of that place may precede
  it: b.tar/cat/a.jpg. The first of these kinds of names that fits any image is that of all rows.
- Paths match in all spellings, see `name_key`.
- A row that names several images, and rows that give an image different labels, are refused.
- Rows that name no image are logged and counted.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from nnclr_hub.csv_table import find_column, listed, name_key, read_csv
from nnclr_hub.errors import InvalidRequest, NoImages
from nnclr_hub.plural import counted

log = logging.getLogger(__name__)
Key = TypeVar("Key", bound=Hashable)
Cells = Mapping[str, tuple[str, ...]]  # by metadata key or "label"; () for an empty cell
LABEL, UNCERTAIN = "label", "uncertain"


@dataclass(frozen=True)
class LabelTable:
    """A table of labels and how to read it.

    file: the CSV file.
    root: folder to which its paths are relative; None: see the rules above.
    path_column, label_column: names of its columns; None: `id` and `path`, `label` or `labels`.
    content: bytes of a file that was uploaded; None: `file` is read.
    """

    file: Path
    root: Path | None = None
    path_column: str | None = None
    label_column: str | None = None
    content: bytes | None = None

    def __str__(self) -> str:
        return str(self.file)

    @classmethod
    def of(cls, table: LabelTable | str | Path) -> LabelTable:
        """Return a table, given as such or as its file."""
        return table if isinstance(table, LabelTable) else cls(Path(table))

    @property
    def folder(self) -> Path | None:
        """The folder to which paths are relative in the first place."""
        return self.root or (self.file.parent if self.content is None else None)


class Named(NamedTuple, Generic[Key]):
    """An image that a row may name.

    key: key that the caller chose, such as a position in a list.
    root: its folder, archive or source; "" without one.
    path: below `root`; "" without one.
    id: "" without one.
    """

    key: Key
    root: str
    path: str
    id: str = ""


@dataclass(frozen=True)
class Row:
    """A row, or several that name the same; `path` is the id if there is no path."""

    line: int
    id: str
    path: str
    cells: Cells


@dataclass(frozen=True)
class Matched(Generic[Key]):
    """The images that rows name.

    cells: cells of each of them, in the order of the table.
    lost: rows that name no image.
    """

    cells: dict[Key, Cells]
    lost: tuple[Row, ...]

    def labels(self, key: Key) -> tuple[str, ...]:
        """Return the labels of an image; () if it is unlabeled or not in the table."""
        return self.cells.get(key, {}).get(LABEL, ())


@dataclass(frozen=True)
class TableRows:
    """The rows of a table.

    table: where they are from.
    rows: at least one; none only of `read_rows(empty=True)`.
    several: keys of cells with several values; rows of the same image are then joined.
    others: columns of the table that were not read.
    """

    table: LabelTable
    rows: tuple[Row, ...]
    several: frozenset[str] = frozenset()
    others: tuple[str, ...] = ()

    @property
    def labels_are_lists(self) -> bool:
        """Whether an image may have more than one label."""
        return LABEL in self.several

    def check(self, found: Matched[Key], place: object, *, part: bool = False) -> Matched[Key]:
        """Log the rows that name no image, unless these are only a part of the images of the table.

        Args:
            place: where the images are, for messages.

        Raises:
            InvalidRequest: no row names an image.
        """
        if not found.cells:
            folder = f"relative to {self.table.folder} or to {place}" if self.table.folder else f"as in {place}"
            raise InvalidRequest(
                f"No row of {self.table} names an image of {place}. Its first path is {self.rows[0].path}; write ids, "
                f"or paths {folder}, or set root (--root) to the folder of the paths."
            )
        if found.lost and not part:
            names = (place, counted(len(found.lost), "row"), self.table, found.lost[0].path)
            log.warning("no image of %s matches %s of %s, such as %s", *names)
        return found

    def match(self, images: Iterable[Named[Key]]) -> Matched[Key]:
        """Find the images that the rows name.

        Raises:
            InvalidRequest: see the rules above.
        """
        by_id, by_place, by_path = (defaultdict[str, list[Row]](list) for _ in range(3))
        folder, is_local = self.table.folder, self.table.content is None
        real = cache(os.path.realpath if is_local else str)  # links of folders are followed
        for row in self.rows:
            path = name_key(row.path)
            by_id[row.id].append(row)
            if folder is not None or path.startswith("/"):
                parent, name = os.path.split(os.path.join(folder or "", path))
                by_place[name_key(os.path.join(real(parent), name))].append(row)
            if self.table.root is None and not path.startswith("/"):
                by_path[path].append(row)
        first = {path.partition("/")[0] for path in by_path}

        @cache
        def prefixes(root: str) -> list[str]:
            """Return what may precede a path; the last one makes it complete."""
            parts = name_key(root).split("/") if root else []
            last = len(parts) - 1
            # a client must not find out the other parts of a folder one by one
            fits = [part in first and (is_local or i == last) for i, part in enumerate(parts)]
            return ["", *("/".join((*parts[i:], "")) for i in range(last, -1, -1) if fits[i] or i == 0)]

        hits: list[dict[Key, list[Row]]] = [{}, {}, {}]
        places: dict[Key, str] = {}
        for image in images:
            path = name_key(image.path)
            names = [prefix + path for prefix in prefixes(image.root)] if image.path else []
            kinds = ((by_id, [image.id]), (by_place, names[-1:]), (by_path, names))
            for own, (by_name, known) in zip(hits, kinds, strict=True):
                if rows := [row for name in dict.fromkeys(known) if name for row in by_name.get(name, ())]:
                    own[image.key] = rows
                    places[image.key] = names[-1] if names else image.id
        ids, exact, relative = hits
        if any(row.path[0] not in "/\\" for rows in exact.values() for row in rows):
            relative = {}
        named = ids or {key: [*exact.get(key, ()), *relative.get(key, ())] for key in places}
        return self._matched({key: rows for key, rows in named.items() if rows}, places)

    def _matched(self, named: Mapping[Key, Sequence[Row]], places: Mapping[Key, str]) -> Matched[Key]:
        used: dict[int, str] = {}
        for key, rows in named.items():
            for row in rows:
                if (other := used.setdefault(row.line, places[key])) != places[key]:
                    raise InvalidRequest(
                        f"Line {row.line} of {self.table} names {row.path}, which is {other} and {places[key]}; write "
                        "a longer path, or the id."
                    )
        cells = {key: self._joined(rows).cells for key, rows in sorted(named.items(), key=lambda one: one[1][0].line)}
        return Matched(cells, tuple(row for row in self.rows if row.line not in used))

    def _joined(self, rows: Sequence[Row]) -> Row:
        """Return several rows of an image as one.

        Raises:
            InvalidRequest: they contradict each other.
        """
        if len(rows) == 1:
            return rows[0]
        first, cells, given_by = rows[0], dict[str, tuple[str, ...]](), dict[str, Row]()
        for row in rows:
            for key, own in row.cells.items():
                before = cells.get(key, ())
                if key in self.several:
                    cells[key] = tuple(dict.fromkeys((*before, *own)))
                elif before and own and before != own:
                    raise InvalidRequest(
                        f"Lines {given_by[key].line} and {row.line} of {self.table} give {row.path} the {key} "
                        f"{before[0]} and the {key} {own[0]}; keep one of them."
                    )
                elif own or key not in cells:
                    cells[key], given_by[key] = own, row
        return Row(first.line, first.id, first.path, cells)


def read_rows(table: LabelTable, columns: Sequence[str] | None = None, *, empty: bool = False) -> TableRows:
    """Read the rows of a table; the images that they name are not looked up.

    Args:
        columns: COLUMN or KEY=COLUMN, the cells to read; None: labels, under the key `label`, and `uncertain` ones.
        empty: allow a table without rows, which changes nothing, such as that of a finding without entries.

    Raises:
        NoImages: the table does not exist or has no rows.
        InvalidRequest: it is not a table, or lacks a column, or rows contradict each other.
    """
    if table.content is None and not table.file.exists():
        raise NoImages(f"{table} does not exist; expected a CSV file with the columns path and label.")
    usual = ["id", "path"] if columns is not None else ["id", "path", "labels", LABEL]
    chosen = filter(None, (table.path_column, table.label_column, *(columns or ())))
    existing, lines = read_csv(table, table.content, *chosen, *usual)
    keys, several = _label_columns(table, existing) if columns is None else (_chosen_columns(existing, columns), ())
    for column in (table.path_column, *keys.values()):
        find_column(table, existing, column)
    if table.path_column is None and not {"id", "path"} & {*existing}:
        raise InvalidRequest(_lacks(table, existing, "path nor id", "path_column (--path-column)"))
    rows: dict[tuple[str, str], list[Row]] = {}
    for line, cells in lines:
        if not any(cell.strip() for cell in cells.values()):
            continue
        id = (cells[table.path_column] if table.path_column else cells.get("id", "")).strip()
        path = ("" if table.path_column else cells.get("path", "")) or id
        if not path:
            raise InvalidRequest(f"Line {line} of {table} has an empty path; write one, or remove the line.")
        values = {key: _split(cells[column], key in several) for key, column in keys.items()}
        rows.setdefault((id, name_key(path)), []).append(Row(line, id, path, values))
    if not rows and not empty:
        raise NoImages(f"{table} has a header but no rows, so it names no images; give a table with rows.")
    made = TableRows(table, (), frozenset(several))
    joined = tuple(map(made._joined, rows.values()))
    repeated = sum(map(len, rows.values())) - len(joined)
    if repeated and columns is None:  # other columns are read next to labels
        log.warning("%s lists images again in %s; each image counts once", table, counted(repeated, "row"))
    read = {"id", "path", table.path_column, *keys.values()}
    return TableRows(table, joined, made.several, tuple(one for one in existing if one not in read))


def _label_columns(table: LabelTable, existing: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the columns with labels by key, and the keys with several values in a cell."""
    column = find_column(table, existing, table.label_column, "labels", LABEL)
    if column is None:
        raise InvalidRequest(_lacks(table, existing, "label nor labels", "label_column (--label-column)"))
    keys = {LABEL: column} | ({UNCERTAIN: UNCERTAIN} if UNCERTAIN in existing else {})
    return keys, (UNCERTAIN, LABEL) if column == "labels" else (UNCERTAIN,)


def _lacks(table: LabelTable, existing: Sequence[str], usual: str, option: str) -> str:
    return f"{table} has neither a column {usual}, only {listed(existing)}; choose one with {option}."


def _chosen_columns(existing: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for one in columns:
        key, _, column = ("", "", one) if one in existing else one.rpartition("=")
        keys[key or column] = column
    return keys


def _split(cell: str, several: bool) -> tuple[str, ...]:
    names = cell.split(";") if several else [cell]
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
