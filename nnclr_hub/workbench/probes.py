"""Probes that a store keeps by name: fitted from its items' labels, used, taken elsewhere.

    bench.fit_probe("pets", collection="photos", field="label")
    bench.predict("pets", images=[Path("new.jpg")])[0].label
    probe_files(get_probe(bench.store.records, "pets"))["probe.safetensors"]

A probe is a record of the store: what is told about it as JSON, its weights as safetensors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nnclr_hub.encoder.features import unit_rows
from nnclr_hub.errors import ProbeExists, ProbeNotFound
from nnclr_hub.probe.labeling import Labeling
from nnclr_hub.probe.linear_probe import ABOUT, WEIGHTS, LinearProbe
from nnclr_hub.store.checks import check_name
from nnclr_hub.store.records import Record, Records
from nnclr_hub.workbench.probe_fitting import FittedProbe

PROBE = "probe"
CARD = "card.json"


@dataclass(frozen=True)
class KeptProbe:
    """A probe by name, and what is known about it.

    probe: its weights are empty where a listing gives it.
    about: JSON: created (seconds since 1970), source, rows, left_out, held_out, scores, none, per_class, dim,
        confusion and few_shot (of probes that were fitted before there were any, not).
    """

    name: str
    probe: LinearProbe
    about: Mapping[str, Any]


def about_fit(fitted: FittedProbe, source: Mapping[str, Any], left_out: Mapping[str, int]) -> dict[str, Any]:
    """What is told about a probe that was fitted just now.

    Args:
        source: where its rows come from.
        left_out: how many were not taken, by reason.
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
    """Raises ProbeExists if there is a probe of that name."""
    if records.get(PROBE, name) is not None:
        raise ProbeExists(f"There is a probe {name!r} already: take another name, or say that it is to be replaced.")


def keep_probe(records: Records, kept: KeptProbe, *, replace: bool) -> None:
    """Keeps a probe.

    Args:
        replace: whether it may take the place of one of the same name.

    Raises:
        ProbeExists: it may not.
    """
    files = kept.probe.files()
    content = {"about": dict(kept.about), "probe": files[ABOUT].decode()}
    with records.together():
        if not replace:
            refuse_taken_probe(records, kept.name)
        records.put(Record(PROBE, check_name(kept.name, "Probe name"), content, files[WEIGHTS]))


def list_probes(records: Records) -> list[KeptProbe]:
    """All probes by name, without their weights."""
    return [_without_weights(record) for record in records.list(PROBE)]


def get_probe(records: Records, name: str) -> KeptProbe:
    """A probe.

    Raises:
        ProbeNotFound: names those that there are.
        InvalidRequest: it is damaged.
    """
    record = records.get(PROBE, name)
    if record is None:
        raise _not_found(records, name)
    probe = LinearProbe.from_files(record.data or b"", record.content["probe"], repr(name))
    return KeptProbe(name, probe, record.content["about"])


def delete_probe(records: Records, name: str) -> None:
    """Deletes a probe.

    Raises:
        ProbeNotFound: there is none.
    """
    if not records.delete(PROBE, name):
        raise _not_found(records, name)


def probe_files(kept: KeptProbe) -> dict[str, bytes]:
    """A probe as files by name: probe.safetensors and probe.json, as `LinearProbe.load` reads them, and card.json."""
    card = json.dumps({"name": kept.name, **kept.about}, indent=2)
    return {**kept.probe.files(), CARD: (card + "\n").encode()}


def probe_in_one_file(kept: KeptProbe) -> bytes:
    """A probe as safetensors whose metadata hold, as `probe`, what the JSON files of `probe_files` say."""
    told = {"name": kept.name, **kept.about, **json.loads(kept.probe.files()[ABOUT])}
    return kept.probe.files(("probe", json.dumps(told)))[WEIGHTS]


def label_rows(probe: LinearProbe, vectors: np.ndarray, k: int, *, fingerprint: str = "") -> list[Labeling]:
    """What a probe says of (N, D) vectors, which need not be of length 1.

    Args:
        k: how many classes to give the probabilities of.
        fingerprint: of the encoder that the vectors come from; "" leaves it unchecked.

    Raises:
        InvalidRequest, FingerprintMismatch: see `LinearProbe.scores`.
    """
    said = probe.predict(unit_rows(np.asarray(vectors, np.float32)), fingerprint=fingerprint)
    best = np.argsort(-said.probabilities, axis=1, kind="stable")[:, :k]
    rows: Sequence[Any] = said.labels
    return [
        Labeling(label, tuple((probe.classes[i], float(row[i])) for i in places))
        for label, row, places in zip(rows, said.probabilities, best, strict=True)
    ]


def _without_weights(record: Record) -> KeptProbe:
    told = json.loads(record.content["probe"])
    empty = np.zeros((0, record.content["about"]["dim"]), np.float32)
    probe = LinearProbe(empty, empty[:, 0], tuple(told.pop("classes")), **told)
    return KeptProbe(record.name, probe, record.content["about"])


def _not_found(records: Records, name: str) -> ProbeNotFound:
    names = ", ".join(record.name for record in records.list(PROBE))
    hint = f"there are {names}." if names else "fit one first."
    return ProbeNotFound(f"There is no probe {name!r:.150}: {hint}")
