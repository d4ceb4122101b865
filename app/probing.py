"""Probing: labels that a person gave to a probe, as the job that REST would begin; nothing of Gradio."""

from __future__ import annotations

import base64
import csv
import io
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from nnclr_hub.errors import InvalidRequest, NotReady
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.checks import check_name
from nnclr_hub.workbench.labels import require_field
from nnclr_hub.workbench.privacy import public_metadata
from nnclr_hub.workbench.probes import refuse_taken_probe
from nnclr_hub.workbench.staging import unstage

from .actions import Action
from .class_folders import classes
from .page import Page
from .widgets.tiles import Tile, tile

FIT = "probe_fit"  # the kind of the job
LOOKED_AT = 1000  # of the server's jobs
MOST_LABELS = 10_000
MOST_WRITTEN = 100  # items whose vectors a command spells out; of more there is the program alone
MOST_LETTERS = 80  # of a label
OPTIONS = {"l2": None, "balanced": False, "threshold": None}
ROOT = "/api/v1/probes"


class Prober:
    """See the module.

    Args:
        page: whose workbench and jobs are used.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._tickets = threading.Lock()  # between looking whose folders are and doing something to them

    def pictures(self, collection: str, number: int) -> tuple[list[Tile], bool]:
        """The collection's first images, and whether there are more."""
        page = self._page.bench.collection(collection).scroll(limit=number, with_vector=False)
        tiles = [tile(collection, item.id, public_metadata(item.metadata)) for item in page.items]
        return tiles, page.cursor is not None

    def tiles(self, collection: str, ids: Sequence[str]) -> list[Tile]:
        """Those of some items.

        Raises:
            InvalidRequest: one is not there.
        """
        items = _items(self._page.bench.collection(collection), ids)
        return [tile(collection, item.id, public_metadata(item.metadata)) for item in items]

    def by_labels(self, name: str, replace: bool, collection: str, labels: Mapping[str, str]) -> tuple[str, Action]:
        """Begins to fit on labeled items; the job's id, and the REST call that does the same, once more.

        Raises:
            InvalidRequest: fewer than two labels, or an item is not there.
            FingerprintMismatch, ModelError: the collection is of an encoder that this server does not have.
            ProbeExists, CollectionNotFound.
        """
        self._check(name, replace)
        counted = Counter(labels.values())
        if len(counted) < 2:
            all_one = f"All {len(labels)} labeled images are {next(iter(counted), '')!r:.90}"
            has = all_one if counted else "No image is labeled"
            raise InvalidRequest(f"{has}, and a probe tells at least two apart: label some images as something else.")
        there = self._page.bench.collection(collection)
        source = self._page.bench.embedder_of(there).name
        ids = list(labels)
        rows = [{"label": labels[item.id], "vector": _text(item.vector)} for item in _items(there, ids)]
        params = self._params(name, replace) | {"items": len(rows), "source": source}
        job = self._jobs().submit(FIT, params, json.dumps(rows).encode())
        vectors = f"[item.vector for item in client.collection({collection!r}).get({ids!r})]"
        call = f"client.probes.fit({name!r}, vectors={vectors}, labels={list(labels.values())!r}, replace=True)"
        if len(rows) > MOST_WRITTEN:
            return job.id, Action("POST", "", call=call)
        return job.id, Action("POST", ROOT, json={"name": name, "items": rows, "replace": True}, call=call)

    def by_field(self, name: str, replace: bool, collection: str, field: str) -> tuple[str, Action]:
        """Begins to fit on a field of the items' metadata; see `by_labels`.

        Raises:
            InvalidRequest: no item has the field.
            ProbeExists, CollectionNotFound.
        """
        self._check(name, replace)
        require_field(self._page.bench.collection(collection), field, None)
        asked = {"collection": collection, "field": field}
        job = self._jobs().submit(FIT, self._params(name, replace) | asked)
        call = f"client.probes.fit({name!r}, collection={collection!r}, field={field!r}, replace=True)"
        return job.id, Action("POST", ROOT, json={"name": name, **asked, "replace": True}, call=call)

    def by_folders(self, name: str, replace: bool, ticket: str) -> tuple[str, Action]:
        """Begins to fit on the class folders that wait under a ticket; see `by_labels`.

        Raises:
            InvalidRequest: nothing waits, or not two classes, or a job has them already.
            ProbeExists, ModelError.
        """
        terms = self._page.terms
        source = self._page.bench.models.get().name
        with self._tickets:
            if self.is_taken(ticket):
                raise InvalidRequest(
                    "A probe is, or was, fitted on these folders already, and they serve for one: choose them again."
                )
            self._check(name, replace)
            number = classes(ticket, terms.max_bytes).total()
            params = self._params(name, replace) | {"source": source, "upload": ticket, "max_bytes": terms.max_bytes}
            job = self._jobs().submit(FIT, params)
        return job.id, fit_folders_action(name, at_once=number <= terms.max_images)

    def is_taken(self, ticket: str) -> bool:
        """Whether a job has the folders of a ticket; one that has ended took them away, or is about to."""
        jobs = [] if self._page.jobs is None else self._page.jobs.list(LOOKED_AT, kind=FIT)[0]
        return any(job.params.get("upload") == ticket for job in jobs)

    def forget_folders(self, ticket: str) -> None:
        """Takes away folders that wait for no job; those that one has are its own."""
        with self._tickets:
            if not self.is_taken(ticket):
                unstage(ticket)

    def _check(self, name: str, replace: bool) -> None:
        if not name:
            raise InvalidRequest("The probe needs a name, such as my-pets.")
        check_name(name, "Probe name")
        if not replace:
            refuse_taken_probe(self._page.bench.store.records, name)

    def _jobs(self) -> Any:
        if self._page.jobs is None:
            raise NotReady("This page stands without a server that could fit: open that of `nnclr serve`.")
        return self._page.jobs

    @staticmethod
    def _params(name: str, replace: bool) -> dict[str, Any]:
        nothing = dict.fromkeys(("collection", "field", "where", "model", "items", "source"))
        return {"name": name, "replace": replace, "options": OPTIONS, **nothing}


def read_labels(text: str) -> dict[str, str]:
    """Labels by id, as the browser has them.

    Raises:
        InvalidRequest: they are none.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidRequest("The labels cannot be read: reload the page and label again.") from error
    if not isinstance(found, dict):
        raise InvalidRequest("The labels cannot be read: reload the page and label again.")
    return _checked(list(found.items()))


def read_csv(path: Path) -> dict[str, str]:
    """Labels by id, of a CSV file with the columns id and label.

    Raises:
        InvalidRequest: it has no such columns, or is no text.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest("The file is no CSV in UTF-8: give one with the columns id and label.") from error
    if not rows or not {"id", "label"} <= set(rows[0]):
        raise InvalidRequest(
            "The CSV file needs the columns id and label, and a row an image: the tab Search exports such files."
        )
    return _checked([(row["id"], row["label"]) for row in rows if row["label"]])


def _checked(pairs: Sequence[tuple[Any, Any]]) -> dict[str, str]:
    if len(pairs) > MOST_LABELS:
        raise InvalidRequest(
            f"{len(pairs)} labels are more than the {MOST_LABELS} taken here: put them into the images' metadata "
            "and fit on that field."
        )
    for id, label in pairs:
        check_name(id, "Item id")
        if not isinstance(label, str) or not 0 < len(label) <= MOST_LETTERS:
            raise InvalidRequest(f"{label!r:.100} is no label: one is a text of 1 to {MOST_LETTERS} letters.")
    labels = dict(pairs)
    if len(labels) < len(pairs):
        twice = next(id for id, number in Counter(id for id, _ in pairs).items() if number > 1)
        raise InvalidRequest(f"The image {twice!r:.100} is labeled twice: give each one label.")
    return labels


def fit_folders_action(name: str, *, at_once: bool) -> Action:
    """The REST call that fits on the class folders in which it stands.

    Args:
        at_once: whether one request takes all the images; else only the program is given, which makes several.
    """
    item = (
        r"""printf '{"label": "%s", "image": "%s"},' "$(dirname "$file")" "$(base64 < "$file" | tr -d '\n')" """.strip()
    )
    items = f"$(for file in */*.*; do {item}; done | sed 's/,$//')"
    body = f'{{"name": {json.dumps(name)}, "replace": true, "items": [{items}]}}'
    call = (
        f"client.probes.fit({name!r}, images=(files := sorted(Path().glob('*/*.*'))), "
        "labels=[file.parent.name for file in files], replace=True)"
    )
    return Action("POST", ROOT if at_once else "", body=body, call=call)


def predict_action(probe: str, file: str) -> Action:
    """The REST call that asks a probe about an image."""
    call = f"client.probes.predict({probe!r}, [Path({file!r})])"
    return Action("POST", f"{ROOT}/{quote(probe, safe='')}/predict", files=(("files", file),), call=call)


def export_path(probe: str) -> str:
    """Where REST has the files of a probe."""
    return f"{ROOT}/{quote(probe, safe='')}/export"


def _items(collection: Collection, ids: Sequence[str]) -> list[Item]:
    found = {item.id: item for item in collection.get(ids)}
    missing = [id for id in ids if id not in found]
    if missing:
        others = f" and {len(missing) - 1:,} other{'s' * (len(missing) > 2)}" if len(missing) > 1 else ""
        raise InvalidRequest(
            f"{collection.name!r} has no image {missing[0]!r:.100}{others}, which the labels name: take them out, or "
            "choose the collection that they are of."
        )
    return [found[id] for id in ids]


def _text(vector: np.ndarray) -> str:
    return base64.b64encode(np.asarray(vector).astype("<f4").tobytes()).decode()
