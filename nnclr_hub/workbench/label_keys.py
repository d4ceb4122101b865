"""Which metadata key of a collection people label, and which labels the keys 1 to 9 of the keyboard give.

    keys = read_label_keys(store.records, "photos")     # LabelKeys("label", ("cat", "dog"))
    write_label_keys(store.records, "photos", LabelKeys("label", ("cat", "dog", "owl")), expected=keys.labels)

They are records of the store, so that everybody who labels a collection sees the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from nnclr_hub.errors import InvalidRequest, MetadataConflict
from nnclr_hub.store.records import Record, Records
from nnclr_hub.store.where import check_key

LABEL_KEYS = "label_keys"
KEYS = 9
FIELDS = 32  # whose labels are kept
Value = str | int | float | bool | None


@dataclass(frozen=True)
class LabelKeys:
    """The metadata key that is labeled, and the labels of the keys from 1 on; None: the key gives no label."""

    field: str = "label"
    labels: tuple[Value, ...] = ()

    def validate(self) -> None:
        """Raise InvalidRequest, or InvalidFilter for a field that is not a metadata key."""
        check_key(self.field)
        if len(self.labels) > KEYS:
            raise InvalidRequest(f"labels must be at most {KEYS}, got {len(self.labels)}.")


def read_label_keys(records: Records, collection: str, field: str | None = None) -> LabelKeys:
    """Return what was written last, or the keys of another field; without labels if none were written."""
    record = records.get(LABEL_KEYS, collection)
    content = {"field": LabelKeys.field, "labels": {}} if record is None else record.content
    named: str = content["field"] if field is None else field
    return LabelKeys(named, tuple(content["labels"].get(named, ())))


def write_label_keys(
    records: Records, collection: str, keys: LabelKeys, expected: tuple[Value, ...] | None = None
) -> None:
    """Set the field and the labels of its keys.

    Raises:
        MetadataConflict: the labels are not `expected`, because somebody else has changed them; None: any are.
        InvalidRequest: see `LabelKeys.validate`.
        OpenedForReading: this process keeps no records.
    """
    keys.validate()
    with records.transaction():
        now = read_label_keys(records, collection, keys.field).labels
        if expected is not None and _text(now) != _text(expected):
            raise MetadataConflict("Somebody else has changed the labels of the keys; read them again.")
        record = records.get(LABEL_KEYS, collection)
        others = {} if record is None else {**record.content["labels"]}
        others.pop(keys.field, None)
        kept = list(others.items())[1 - FIELDS :]
        content = {"field": keys.field, "labels": {**dict(kept), keys.field: list(keys.labels)}}
        records.put(Record(LABEL_KEYS, collection, content))


def _text(labels: tuple[Value, ...]) -> str:
    # equal for labels that are equal in JSON: 1 equals 1.0, but not true
    return json.dumps([int(one) if isinstance(one, float) and one.is_integer() else one for one in labels])


def rename_label_keys(records: Records, collection: str, to: str) -> None:
    """Keep the keys of a collection that was renamed."""
    if (record := records.get(LABEL_KEYS, collection)) is not None:
        with records.transaction():
            records.put(replace(record, name=to))
            records.delete(LABEL_KEYS, collection)
