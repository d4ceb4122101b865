"""Labels that a collection's items carry in a field of their metadata, with their vectors.

read = labeled_items(store.get("photos"), "label")
read.vectors                # (N, D) float32, unit rows
read.labels                 # ("cat",), ("dog",), ...; of a field with lists, all that each list names
read.left_out               # {"no label": 3}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnclr_hub.encoder.features import unit_rows
from nnclr_hub.encoder.labeled import some
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.probe.linear_probe import Label
from nnclr_hub.store.base import Collection, Progress, Where
from nnclr_hub.store.pages import pages

PAGE = 1000
SAMPLE = 1000  # items that a refusal looks at for the fields there are
NO_LABEL = "no label"


@dataclass(frozen=True)
class LabeledVectors:
    """N rows to fit on.

    vectors: (N, D) float32, unit rows.
    labels: of each, its labels; one each, unless `several`.
    several: whether a row may have more than one label, or none.
    left_out: how many items were not taken, by reason.
    """

    vectors: np.ndarray
    labels: list[tuple[Label, ...]]
    several: bool
    left_out: dict[str, int]

    @property
    def classes(self) -> tuple[Label, ...]:
        """Every label that occurs, sorted as `fit_linear_probe` does."""
        return tuple(
            sorted({label for labels in self.labels for label in labels}, key=lambda one: (isinstance(one, str), one))
        )

    def targets(self, classes: Sequence[Label]) -> np.ndarray:
        """(N,) int64 places in `classes`; for several labels (N, C) float32 of zeros and ones."""
        place = {label: i for i, label in enumerate(classes)}
        if not self.several:
            return np.array([place[labels[0]] for labels in self.labels], np.int64)
        matrix = np.zeros((len(self.labels), len(classes)), np.float32)
        for row, labels in zip(matrix, self.labels, strict=True):
            row[[place[label] for label in labels]] = 1
        return matrix


def label_of(value: Any, where: str) -> tuple[Label, ...] | None:
    """The labels that a JSON value stands for; None: there is none.

    Text and whole numbers are labels, true and false are "true" and "false"; a list holds several.

    Raises:
        InvalidRequest: fractions and objects are no labels.
    """
    if isinstance(value, list | tuple):
        each = [label_of(one, where) for one in value if not isinstance(one, list | tuple)]
        if len(each) < len(value):
            raise InvalidRequest(f"{where} holds lists in lists, which are no labels: flatten them.")
        return tuple(dict.fromkeys(one[0] for one in each if one))
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return (str(value).lower(),)
    if isinstance(value, str | int):
        return (value,)
    if isinstance(value, float) and value.is_integer():
        return (int(value),)
    raise InvalidRequest(f"{where} holds {value!r:.60}, which is no label: labels are texts or whole numbers.")


def require_field(collection: Collection, field: str, where: Where | None) -> int:
    """How many items have the field.

    Raises:
        InvalidRequest: none has; names the fields that there are.
        InvalidFilter: `where` is none.
    """
    if where is not None:
        collection.count(where)  # so that it is a filter
    number = collection.count(_with_field(field, where))
    if not number:
        narrowed = " that pass the filter" if where else ""
        raise InvalidRequest(f"No item of {collection.name!r}{narrowed} has the field {field!r}: {_fields(collection)}")
    return number


def labeled_items(
    collection: Collection,
    field: str,
    where: Where | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> LabeledVectors:
    """The vectors of all items with a label; those without are counted.

    Args:
        field: of the metadata; one label each, or a list of them.
        where: only items that pass.
        progress: called with (done, total), counted in items with the field.

    Raises:
        InvalidRequest: no item has the field, its values are no labels, there are fewer than two of them, or more
            vectors than fit into memory.
    """
    total = require_field(collection, field, where)
    _refuse_more_than_fit(total, collection.spec.dim)
    vectors, found, done = np.empty((total, collection.spec.dim), np.float32), [], 0
    for items in pages(collection, _with_field(field, where), limit=PAGE):
        for item in items[: total - done]:  # what is added meanwhile comes too late
            vectors[len(found)] = item.vector
            label = label_of(item.metadata[field], f"The field {field!r} of item {item.id!r}")
            if label is not None:
                found.append((label, isinstance(item.metadata[field], list)))
        done = min(done + len(items), total)
        progress(done, total)
    labels, several = [label for label, _ in found], any(is_list for _, is_list in found)
    without = collection.count(where) - len(labels)
    left_out = {NO_LABEL: without} if without > 0 else {}
    read = LabeledVectors(unit_rows(vectors[: len(labels)]), labels, several, left_out)
    refuse_few(read, f"The field {field!r} of {collection.name!r}", _fields(collection))
    return read


def _refuse_more_than_fit(total: int, dim: int) -> None:
    from nnclr_hub.store.ann.kinds import default_budget  # imports faiss, which those who only fit on files may lack

    most = default_budget() // (8 * dim)  # they are held twice
    if total > most:
        raise InvalidRequest(
            f"{total} items are too many to fit on at once: this machine's memory takes {most} vectors of {dim} "
            "numbers; choose some of them with a filter."
        )


def refuse_few(read: LabeledVectors, what: str, way_on: str) -> None:
    """Raises InvalidRequest unless there are two classes; of several labels a row, one, and rows without it."""
    classes = read.classes
    if len(classes) >= 2 or (read.several and classes and not all(read.labels)):
        return
    has = "no label at all" if not classes else f"only the label {classes[0]!r:.80}"
    raise InvalidRequest(f"{what} has {has}, and a probe tells at least two classes apart: {way_on}")


def _fields(collection: Collection) -> str:
    """What a refusal says about the fields there are."""
    counts: Counter[str] = Counter()
    for item in collection.scroll(None, SAMPLE, with_vector=False).items:
        counts.update(item.metadata.keys())
    names = [name for name, _ in counts.most_common()]
    return f"there are the fields {some(names, 20)}." if names else "its items have no metadata at all."


def _with_field(field: str, where: Where | None) -> Mapping[str, Any]:
    """The filter for items that have a value there, and pass another filter."""
    has: dict[str, Any] = {"key": field, "exists": True}
    if where is None:
        return {"must": [has]}
    return {**where, "must": [*where.get("must", []), has]}
