"""Read the labels in a metadata field of a collection's items, with their vectors.

read = labeled_items(store.get("photos"), "label")
read.vectors                # (N, D) float32, unit rows
read.labels                 # ("cat",), ("dog",), ...; of a field with lists, all labels of each list
read.left_out               # {"no label": 3}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnclr_hub.encoder.preprocessing import unit_rows
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.labels import first_names
from nnclr_hub.missing_values import is_missing
from nnclr_hub.probe.linear_probe import Label
from nnclr_hub.store import settings
from nnclr_hub.store.base import Collection, Progress, Where
from nnclr_hub.store.where import value_of

PAGE = 1000
SAMPLE = 1000  # items that are read to list the existing fields in an error message
NO_LABEL = "no label"


@dataclass(frozen=True)
class LabeledVectors:
    """N rows to fit on.

    vectors: (N, D) float32, unit rows.
    labels: the labels of each row; exactly one, unless `several`.
    several: whether a row may have more than one label, or none.
    left_out: how many items were not used, by reason.
    uncertain: labels of each row that count neither as present nor as absent; () for none at all.
    """

    vectors: np.ndarray
    labels: Sequence[tuple[Label, ...]]
    several: bool
    left_out: Mapping[str, int]
    uncertain: Sequence[tuple[Label, ...]] = ()

    @property
    def classes(self) -> tuple[Label, ...]:
        """Every label that occurs, in the order of `fit_linear_probe`."""
        return _classes(self.labels)

    def targets(self, classes: Sequence[Label]) -> np.ndarray:
        """Return (N,) int64 positions in `classes`; for several labels (N, C) of zeros and ones, NaN if uncertain."""
        position = {label: i for i, label in enumerate(classes)}
        if not self.several:
            return np.array([position[labels[0]] for labels in self.labels], np.int64)
        matrix = np.zeros((len(self.labels), len(classes)), np.float32)
        for row, uncertain in zip(matrix, self.uncertain, strict=False):
            row[[position[label] for label in uncertain if label in position]] = np.nan
        for row, labels in zip(matrix, self.labels, strict=True):
            row[[position[label] for label in labels]] = 1
        return matrix


def label_of(value: Any, where: str) -> tuple[Label, ...] | None:
    """Return the labels that a JSON value represents; None: it has no label, see `is_missing`.

    Strings and whole numbers are labels, true and false become "true" and "false"; a list holds several labels.
    Fractions, objects and nested lists are refused.
    """
    if isinstance(value, list | tuple):
        each = [label_of(one, where) for one in value if not isinstance(one, list | tuple)]
        if len(each) < len(value):
            raise InvalidRequest(f"{where} holds nested lists, which cannot be labels; flatten them.")
        return tuple(dict.fromkeys(one[0] for one in each if one))
    if is_missing(value):
        return None
    if isinstance(value, bool):
        return (str(value).lower(),)
    if isinstance(value, str | int):
        return (value,)
    if isinstance(value, float) and value.is_integer():
        return (int(value),)
    raise InvalidRequest(f"{where} holds {value!r:.60}, which is not a label; use strings or whole numbers.")


def label_text(metadata: Mapping[str, Any], field: str) -> str | None:
    """Return the label of a field as the name of a class; None: it has none, several, or an object.

    Equal labels have equal names: true is "true", and 3 and 3.0 are "3".
    """
    value = value_of(metadata, field, None)
    if isinstance(value, float) and not value.is_integer():
        return None if is_missing(value) else str(value)
    try:
        labels = label_of(value, field) or ()
    except InvalidRequest:
        return None
    return str(labels[0]) if len(labels) == 1 else None


def require_field(collection: Collection, field: str, where: Where | None) -> int:
    """Return how many items have the field; raise InvalidRequest with the existing fields if none has it."""
    if where is not None:
        collection.count(where)  # raises if it is not a valid filter
    number = collection.count(_with_field(field, where))
    if not number:
        narrowed = " that pass the filter" if where else ""
        raise InvalidRequest(f"No item of {collection.name!r}{narrowed} has the field {field!r}; {_fields(collection)}")
    return number


def labeled_items(
    collection: Collection,
    field: str,
    where: Where | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> LabeledVectors:
    """Return the vectors of all items with a label; items without are counted.

    Args:
        field: metadata key; its value is a label or a list of labels.
        progress: called with (done, total), counted in items with the field.
    """
    total, dim = require_field(collection, field, where), collection.spec.dim
    most = settings.default_index_memory() // (8 * dim)  # two copies of float32
    if total > most:
        raise InvalidRequest(
            f"{total} items are too many to fit on: this machine's memory holds {most} vectors of length {dim}; select "
            "fewer items with a filter."
        )
    vectors, found, done = np.empty((total, dim), np.float32), [], 0
    for items in collection.pages(_with_field(field, where), limit=PAGE):
        for item in items[: total - done]:  # items that are added while this runs are ignored
            vectors[len(found)] = item.vector
            value = value_of(item.metadata, field, None)
            label = label_of(value, f"The field {field!r} of item {item.id!r}")
            if label is not None:
                found.append((label, isinstance(value, list)))
        done = min(done + len(items), total)
        progress(done, total)
    labels, several = [label for label, _ in found], any(is_list for _, is_list in found)
    without = collection.count(where) - len(labels)
    left_out = {NO_LABEL: without} if without > 0 else {}
    read = LabeledVectors(unit_rows(vectors[: len(labels)]), labels, several, left_out)
    refuse_few(labels, several, f"The field {field!r} of {collection.name!r}", _fields(collection))
    return read


def refuse_few(labels: Sequence[tuple[Label, ...]], several: bool, what: str, hint: str) -> None:
    """Raise InvalidRequest unless there are two classes; with several labels per row, one and rows without it."""
    classes = _classes(labels)
    if len(classes) >= 2 or (several and classes and not all(labels)):
        return
    has = "no labels" if not classes else f"only the label {classes[0]!r:.80}"
    raise InvalidRequest(f"{what} has {has}, and a probe needs at least two classes; {hint}")


def _classes(labels: Sequence[tuple[Label, ...]]) -> tuple[Label, ...]:
    return tuple(sorted({label for own in labels for label in own}, key=lambda one: (isinstance(one, str), one)))


def _fields(collection: Collection) -> str:
    counts: Counter[str] = Counter()
    for item in collection.scroll(None, SAMPLE, with_vector=False).items:
        counts.update(item.metadata.keys())
    names = [name for name, _ in counts.most_common()]
    return f"existing fields: {first_names(names, 20)}." if names else "its items have no metadata."


def _with_field(field: str, where: Where | None) -> Mapping[str, Any]:
    has: dict[str, Any] = {"key": field, "exists": True}
    if where is None:
        return {"must": [has]}
    return {**where, "must": [*where.get("must", []), has]}
