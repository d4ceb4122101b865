"""Linear probes that a store keeps by name, and the labels that they predict.

    keep_probe(records, fit_on_collection(collection, "pets", "label", None, FitOptions()), replace=False)
    bench.predict("pets", collection="photos", ids=["a"])[0].label
    probe_files(get_probe(bench.store.records, "pets"))["probe.safetensors"]

A probe is a record of the store: its description as JSON, its weights as safetensors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nnclr_hub.encoder.features import unit_rows
from nnclr_hub.errors import ItemNotFound, NNCLRHubError, ProbeExists, ProbeNotFound
from nnclr_hub.probe.labeling import Labeling
from nnclr_hub.probe.linear_probe import ABOUT, WEIGHTS, LinearProbe
from nnclr_hub.store.base import Collection
from nnclr_hub.store.checks import check_name
from nnclr_hub.store.records import Record, Records
from nnclr_hub.workbench.probe_fitting import FittedProbe

PROBE = "probe"
CARD = "card.json"


@dataclass(frozen=True)
class KeptProbe:
    """A named probe and its description.

    probe: without weights in a listing.
    about: JSON: created (seconds since 1970), source, rows, left_out, held_out, scores, none, per_class, dim,
        confusion and few_shot (the last two are missing in probes of early versions).
    """

    name: str
    probe: LinearProbe
    about: Mapping[str, Any]


def about_fit(fitted: FittedProbe, source: Mapping[str, Any], left_out: Mapping[str, int]) -> dict[str, Any]:
    """Return the description of a probe that was fitted just now.

    Args:
        source: where its rows come from.
        left_out: how many items were not used, by reason.
    """
    return {
        "created": time.time(),
        "source": dict(source),
        "dim": fitted.probe.weight.shape[1],
        "rows": fitted.rows,
        "left_out": dict(left_out),
        "held_out": fitted.held_out,
        "scores": fitted.scores,
        "none": fitted.none,
        "per_class": [asdict(one) for one in fitted.per_class],
        "confusion": None if fitted.confusion is None else [list(row) for row in fitted.confusion],
        "few_shot": [{"labels": one.per_class, "top1": list(one.accuracy)} for one in fitted.few_shot],
    }


def refuse_taken_probe(records: Records, name: str) -> None:
    """Raise ProbeExists if a probe of that name exists."""
    if records.get(PROBE, name) is not None:
        raise ProbeExists(f"A probe named {name!r} exists already; use another name, or ask to replace it.")


def keep_probe(records: Records, kept: KeptProbe, *, replace: bool) -> None:
    """Store a probe.

    Args:
        replace: whether it may replace a probe of the same name.

    Raises:
        ProbeExists: if a probe of that name exists and may not be replaced.
    """
    files = kept.probe.files()
    content = {"about": dict(kept.about), "probe": files[ABOUT].decode()}
    with records.transaction():
        if not replace:
            refuse_taken_probe(records, kept.name)
        records.put(Record(PROBE, check_name(kept.name, "Probe name"), content, files[WEIGHTS]))


def list_probes(records: Records) -> list[KeptProbe]:
    """Return all probes by name, without their weights."""
    return [_without_weights(record) for record in records.list(PROBE)]


def get_probe(records: Records, name: str) -> KeptProbe:
    """Return a probe.

    Raises:
        ProbeNotFound: names the existing ones.
        InvalidRequest: if it is damaged.
    """
    record = records.get(PROBE, name)
    if record is None:
        raise _not_found(records, name)
    probe = LinearProbe.from_files(record.data or b"", record.content["probe"], repr(name))
    return KeptProbe(name, probe, record.content["about"])


def delete_probe(records: Records, name: str) -> None:
    """Delete a probe.

    Raises:
        ProbeNotFound: names the existing ones.
    """
    if not records.delete(PROBE, name):
        raise _not_found(records, name)


def probe_files(kept: KeptProbe) -> dict[str, bytes]:
    """Return a probe as files by name: probe.safetensors and probe.json for `LinearProbe.load`, and card.json."""
    card = json.dumps({"name": kept.name, **kept.about}, indent=2)
    return {**kept.probe.files(), CARD: (card + "\n").encode()}


def probe_in_one_file(kept: KeptProbe) -> bytes:
    """Return a probe as one safetensors file, whose metadata `probe` holds the JSON of `probe_files`."""
    about = {"name": kept.name, **kept.about, **json.loads(kept.probe.files()[ABOUT])}
    return kept.probe.files(("probe", json.dumps(about)))[WEIGHTS]


def label_rows(probe: LinearProbe, vectors: np.ndarray, k: int, *, fingerprint: str = "") -> list[Labeling]:
    """Return a probe's labeling of vectors (N, D), which need not have length 1.

    Args:
        k: number of classes to report with their probability.
        fingerprint: of the encoder that made the vectors; "" skips the check.

    Raises:
        InvalidRequest, FingerprintMismatch: see `LinearProbe.scores`.
    """
    prediction = probe.predict(unit_rows(np.asarray(vectors, np.float32)), fingerprint=fingerprint)
    best = np.argsort(-prediction.probabilities, axis=1, kind="stable")[:, :k]
    rows: Sequence[Any] = prediction.labels
    return [
        Labeling(label, tuple((probe.classes[i], float(row[i])) for i in places))
        for label, row, places in zip(rows, prediction.probabilities, best, strict=True)
    ]


def label_items(
    probe: LinearProbe, collection: Collection, ids: Sequence[str], k: int
) -> list[Labeling | NNCLRHubError]:
    """Return the labeling of each item of a collection, or an ItemNotFound.

    Raises:
        FingerprintMismatch: if the collection's vectors come from another encoder.
    """
    probe.require(collection.spec.fingerprint)
    vectors = {item.id: item.vector for item in collection.get(list(dict.fromkeys(ids)))}
    missing = {
        id: ItemNotFound(f"Collection {collection.name!r} has no item {id!r}.") for id in ids if id not in vectors
    }
    found = [vectors[id] for id in ids if id in vectors]
    labelings = iter(label_rows(probe, np.stack(found), k, fingerprint=collection.spec.fingerprint) if found else [])
    return [missing[id] if id in missing else next(labelings) for id in ids]


def _without_weights(record: Record) -> KeptProbe:
    about = json.loads(record.content["probe"])
    empty = np.zeros((0, record.content["about"]["dim"]), np.float32)
    probe = LinearProbe(empty, empty[:, 0], tuple(about.pop("classes")), **about)
    return KeptProbe(record.name, probe, record.content["about"])


def _not_found(records: Records, name: str) -> ProbeNotFound:
    names = ", ".join(record.name for record in records.list(PROBE))
    hint = f"existing probes: {names}." if names else "fit one first."
    return ProbeNotFound(f"No probe is named {name!r:.150}; {hint}")
