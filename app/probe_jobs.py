"""ProbeJobs: starts the job that fits a probe on a user's labels; independent of Gradio."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nnclr_hub.client.call_examples import ApiCall
from nnclr_hub.errors import InvalidRequest, NotReady
from nnclr_hub.store.base import Collection, Item
from nnclr_hub.store.checks import check_name
from nnclr_hub.workbench.labels import require_field
from nnclr_hub.workbench.payload import encode_vector
from nnclr_hub.workbench.privacy import public_metadata
from nnclr_hub.workbench.probes import refuse_taken_probe
from nnclr_hub.workbench.staging import stage, staged_images, unstage

from .api_calls import PROBES, fit_folders_call
from .handlers import escape_markdown
from .page import Page
from .widgets.tiles import Tile, tile
from .widgets.uploader import MAX_FILES_WHOLE, uploaded_files

FIT = "probe_fit"  # the kind of the job
MAX_JOBS = 1000  # jobs of the server to search for one with a ticket
MAX_LABELS = 10_000
MAX_IN_COMMAND = 100  # items whose vectors a command contains; for more items, only the program is shown
MAX_LETTERS = 80  # of a label
MAX_CLASSES_SHOWN = 8
OPTIONS = {"l2": None, "balanced": False, "threshold": None}
_TICKET = re.compile(r"[0-9a-f]{32}")


class ProbeJobs:
    """Start jobs that fit probes.

    Args:
        page: provides the workbench, the settings and the jobs.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._tickets = threading.Lock()  # held from checking whether a job has a ticket until acting on it

    def first_tiles(self, collection: str, number: int) -> tuple[list[Tile], bool]:
        """Return the tiles of the collection's first images, and whether there are more."""
        page = self._page.bench.collection(collection).scroll(limit=number, with_vector=False)
        tiles = [tile(collection, item.id, public_metadata(item.metadata)) for item in page.items]
        return tiles, page.cursor is not None

    def tiles(self, collection: str, ids: Sequence[str]) -> list[Tile]:
        """Return the tiles of the given items.

        Raises:
            InvalidRequest: an item does not exist.
        """
        items = _items(self._page.bench.collection(collection), ids)
        return [tile(collection, item.id, public_metadata(item.metadata)) for item in items]

    def fit_labels(self, name: str, replace: bool, collection: str, labels: Mapping[str, str]) -> tuple[str, ApiCall]:
        """Start to fit on labeled items; return the id of the job, and the same REST call.

        Raises:
            InvalidRequest: there are fewer than two labels, or an item does not exist.
            FingerprintMismatch, ModelError: the collection is bound to an encoder that this server does not have.
            ProbeExists, CollectionNotFound.
        """
        self._check(name, replace)
        classes = sorted(set(labels.values()))
        if len(classes) < 2:
            problem = f"All {len(labels)} labels are {classes[0]!r:.90}" if classes else "No image is labeled"
            raise InvalidRequest(f"{problem}, but a probe needs at least two classes. Label images of another class.")
        source = self._page.bench.collection(collection)
        encoder = self._page.bench.embedder_of(source).name
        ids = list(labels)
        rows = [{"label": labels[item.id], "vector": encode_vector(item.vector)} for item in _items(source, ids)]
        params = self._params(name, replace) | {"items": len(rows), "source": encoder}
        job = self._jobs().submit(FIT, params, json.dumps(rows).encode())
        vectors = f"[item.vector for item in client.collection({collection!r}).get({ids!r})]"
        call = f"client.probes.fit({name!r}, vectors={vectors}, labels={list(labels.values())!r}, replace=True)"
        if len(rows) > MAX_IN_COMMAND:
            return job.id, ApiCall("POST", "", call=call)
        return job.id, ApiCall("POST", PROBES, json={"name": name, "items": rows, "replace": True}, call=call)

    def fit_field(self, name: str, replace: bool, collection: str, field: str) -> tuple[str, ApiCall]:
        """Start to fit on a metadata field of the items; see `fit_labels`.

        Raises:
            InvalidRequest: no item has the field.
            ProbeExists, CollectionNotFound.
        """
        self._check(name, replace)
        require_field(self._page.bench.collection(collection), field, None)
        source = {"collection": collection, "field": field}
        job = self._jobs().submit(FIT, self._params(name, replace) | source)
        call = f"client.probes.fit({name!r}, collection={collection!r}, field={field!r}, replace=True)"
        return job.id, ApiCall("POST", PROBES, json={"name": name, **source, "replace": True}, call=call)

    def fit_folders(self, name: str, replace: bool, ticket: str) -> tuple[str, ApiCall]:
        """Start to fit on the class folders that are stored under a ticket; see `fit_labels`.

        Raises:
            InvalidRequest: there are fewer than two classes, nothing is stored, or a job already has the folders.
            ProbeExists, ModelError.
        """
        settings = self._page.settings
        encoder = self._page.bench.models.get().name
        with self._tickets:
            if self.is_taken(ticket):
                raise InvalidRequest("These folders were already used for a probe. Choose them again.")
            self._check(name, replace)
            number = count_classes(ticket, settings.max_bytes).total()
            params = self._params(name, replace) | {
                "source": encoder,
                "upload": ticket,
                "max_bytes": settings.max_bytes,
            }
            job = self._jobs().submit(FIT, params)
        return job.id, fit_folders_call(name, one_request=number <= settings.max_images)

    def is_taken(self, ticket: str) -> bool:
        """Return whether a job has the folders of a ticket; the job deletes them when it ends."""
        jobs = [] if self._page.jobs is None else self._page.jobs.list(MAX_JOBS, kind=FIT)[0]
        return any(job.params.get("upload") == ticket for job in jobs)

    def delete_folders(self, ticket: str) -> None:
        """Delete stored folders unless a job has them."""
        with self._tickets:
            if not self.is_taken(ticket):
                unstage(ticket)

    def _check(self, name: str, replace: bool) -> None:
        if not name:
            raise InvalidRequest("Enter a name for the probe, such as my-pets.")
        check_name(name, "Probe name")
        if not replace:
            refuse_taken_probe(self._page.bench.store.records, name)

    def _jobs(self) -> Any:
        if self._page.jobs is None:
            raise NotReady("This page has no server that can fit probes. Open the page of `nnclr serve`.")
        return self._page.jobs

    @staticmethod
    def _params(name: str, replace: bool) -> dict[str, Any]:
        unset = dict.fromkeys(("collection", "field", "where", "model", "items", "source"))
        return {"name": name, "replace": replace, "options": OPTIONS, **unset}


def read_labels(text: str) -> dict[str, str]:
    """Return the labels by item id from the JSON that the browser sends.

    Raises:
        InvalidRequest: they are not valid.
    """
    try:
        labels = json.loads(text)
    except ValueError:
        labels = None
    if not isinstance(labels, dict):
        raise InvalidRequest("The labels are not valid JSON. Reload the page and label again.")
    return _check_labels(list(labels.items()))


def read_csv(path: Path) -> dict[str, str]:
    """Return the labels by item id from a CSV file with the columns id and label.

    Raises:
        InvalidRequest: the file is not UTF-8 text, or a column is missing.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidRequest("The file is not CSV in UTF-8. It needs the columns id and label.") from error
    if not rows or not {"id", "label"} <= set(rows[0]):
        raise InvalidRequest(
            "The CSV file needs the columns id and label, with one row per image. The Search tab exports such files."
        )
    return _check_labels([(row["id"], row["label"]) for row in rows if row["label"]])


def _check_labels(pairs: Sequence[tuple[Any, Any]]) -> dict[str, str]:
    if len(pairs) > MAX_LABELS:
        raise InvalidRequest(
            f"At most {MAX_LABELS} labels can be used here, got {len(pairs)}. Add them to the metadata of the items, "
            "and fit on that field."
        )
    for id, label in pairs:
        check_name(id, "Item id")
        if not isinstance(label, str) or not 0 < len(label) <= MAX_LETTERS:
            raise InvalidRequest(f"A label must have 1 to {MAX_LETTERS} characters, got {label!r:.100}.")
    labels = dict(pairs)
    if len(labels) < len(pairs):
        twice = next(id for id, number in Counter(id for id, _ in pairs).items() if number > 1)
        raise InvalidRequest(f"The image {twice!r:.100} has two labels. Use one label per image.")
    return labels


def _items(collection: Collection, ids: Sequence[str]) -> list[Item]:
    found = {item.id: item for item in collection.get(ids)}
    missing = [id for id in ids if id not in found]
    if missing:
        others = f" and {len(missing) - 1:,} other{'s' * (len(missing) > 2)}" if len(missing) > 1 else ""
        raise InvalidRequest(
            f"Labeled images are missing from {collection.name!r}: {missing[0]!r:.100}{others}. Remove their labels, "
            "or choose the collection that contains them."
        )
    return [found[id] for id in ids]


# ---- class folders: one folder of images per class, stored until a probe is fitted on them


def store_folders(files: Any, max_bytes: int) -> str:
    """Store the files of an upload, and return their ticket.

    Args:
        max_bytes: maximum size of one image.

    Raises:
        InvalidRequest: fewer than two folders contain images, or a zip is not acceptable.
        Overloaded: the space for stored uploads is full.
    """
    ticket = stage(uploaded_files(files, MAX_FILES_WHOLE))
    try:
        count_classes(ticket, max_bytes)
    except BaseException:
        unstage(ticket)
        raise
    return ticket


def count_classes(ticket: str, max_bytes: int) -> Counter[str]:
    """Return the number of stored images per class; images without a folder are counted under "".

    Raises:
        InvalidRequest: there are fewer than two classes, or nothing is stored under the ticket.
    """
    with staged_images(ticket, max_bytes) as (images, _):
        counts = Counter(image.label for image in images)
    named = [label for label in counts if label]
    if len(named) < 2:
        problem = f"All images are in the folder {named[0]!r:.90}" if named else "No image is in a folder"
        raise InvalidRequest(
            f"{problem}, but a probe needs at least two classes. Choose a folder that contains one folder per class."
        )
    return counts


def describe_folders(counts: Counter[str]) -> str:
    """Return the counts of the stored images as Markdown."""
    named = [(label, number) for label, number in sorted(counts.items()) if label]
    classes = ", ".join(f"{escape_markdown(label)} {number:,}" for label, number in named[:MAX_CLASSES_SHOWN])
    others = f" and {len(named) - MAX_CLASSES_SHOWN:,} more" if len(named) > MAX_CLASSES_SHOWN else ""
    unlabeled = f" {counts['']:,} images without a folder are skipped." if counts[""] else ""
    total = sum(number for _, number in named)
    return (
        f"**{total:,} images** in {len(named):,} classes are ready: {classes}{others}.{unlabeled} "
        "Enter a name for the probe and press *Fit*."
    )


def read_ticket(stored: Any) -> str | None:
    """Return the ticket that a browser stored, or None if it is not valid."""
    return stored if isinstance(stored, str) and _TICKET.fullmatch(stored) else None
