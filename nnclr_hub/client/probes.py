"""Linear probes of a server: fit, list, predict, export."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.client.answers import failures, make_error
from nnclr_hub.client.images import bounded
from nnclr_hub.client.jobs import Job, read_job
from nnclr_hub.client.models import embed, list_models, reports_each
from nnclr_hub.client.steps import Answer, Call, File, Steps, in_thread, perform
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, ProbeNotFound, ServiceError
from nnclr_hub.probe.labeling import Label, Labeling
from nnclr_hub.store.base import Where
from nnclr_hub.store.checks import check_ids, check_name
from nnclr_hub.workbench.payload import encode_vector, image_file

if TYPE_CHECKING:
    from nnclr_hub.client.images import ImageLike

ROOT = "/api/v1/probes"
FILES = ("probe.safetensors", "probe.json", "card.json")
LARGEST = 100_000_000  # bytes of a file of a probe


@dataclass(frozen=True)
class ProbeInfo:
    """A probe of a server.

    rows: number of rows that it was fitted on.
    held_out: number of rows on which `scores` (top1, mean_per_class, ...) were measured.
    fingerprint: of the encoder that its vectors must come from.
    """

    name: str
    classes: tuple[Label, ...]
    several: bool
    dim: int
    model: str
    fingerprint: str
    l2: float
    threshold: float
    rows: int
    held_out: int
    scores: Mapping[str, float]


def fit(
    name: str,
    *,
    collection: str | None = None,
    field: str | None = None,
    where: Where | None = None,
    vectors: np.ndarray | None = None,
    images: Sequence[ImageLike] | None = None,
    labels: Sequence[Label | Sequence[Label]] | None = None,
    model: str | None = None,
    l2: float | None = None,
    balanced: bool = False,
    threshold: float | None = None,
    reject_far: float | None = None,
    replace: bool = False,
) -> Steps[Job]:
    """Start to fit a probe; `jobs.wait` waits for it.

    Args:
        collection, field: fit on the vectors of items and that metadata field; `where`: only on items that pass.
        vectors or images, labels: or fit on rows (N, D) or images, any number, with a label (or several) for each.
        model: the encoder of the vectors, or the one to embed the images with.
        l2, balanced, threshold, reject_far: see `fit_linear_probe`.
        replace: replace a probe of the same name.

    Raises:
        ProbeExists: a probe has that name, and `replace` is false.
        CollectionNotFound: the collection does not exist.
        UnknownModel: the server does not have the model.
        InvalidRequest: the labels are not enough to fit a probe, or an argument is invalid.
        ImageError: for the first image that cannot be read.
    """
    body: dict[str, Any] = {"name": check_name(name, "Probe name"), "balanced": balanced, "replace": replace}
    optional = {"collection": collection, "field": field, "where": where, "model": model, "l2": l2}
    optional |= {"threshold": threshold, "reject_far": reject_far}
    body |= {key: value for key, value in optional.items() if value is not None}
    if vectors is not None or images is not None or labels is not None:
        known = _labels(vectors, images, labels)  # errors are reported before anything is sent
        if images is not None:  # they may be more than one request holds
            body["model"] = model if model is not None else (yield from list_models())[0].name
            vectors = yield from embed(images, model=body["model"])
        rows = zip(vectors, known, strict=True) if vectors is not None else ()
        body["items"] = [{"vector": encode_vector(row), "label": label} for row, label in rows]
    return (yield from perform(Call("POST", ROOT, lambda answer: read_job(answer.json()), json=body)))


def get(name: str) -> Steps[ProbeInfo]:
    """Return a probe.

    Raises:
        ProbeNotFound: names the existing ones.
    """
    return perform(Call("GET", _path(name), lambda answer: _info(answer.json())))


def list_probes() -> Steps[list[ProbeInfo]]:
    """Return all probes, by name."""
    return perform(Call("GET", ROOT, lambda answer: [_info(one) for one in answer.json()["probes"]]))


def delete(name: str) -> Steps[None]:
    """Delete a probe.

    Raises:
        ProbeNotFound: names the existing ones.
    """
    return perform(Call("DELETE", _path(name), lambda answer: None, gone=ProbeNotFound))


def predict(
    name: str,
    images: Sequence[ImageLike] | None = None,
    *,
    vectors: np.ndarray | None = None,
    fingerprint: str = "",
    collection: str | None = None,
    ids: Sequence[str] | None = None,
    top: int = 5,
) -> Steps[list[Labeling | NNCLRHubError]]:
    """Return a probe's labeling of images, rows, or items of a collection: one entry each, or its error.

    Args:
        images: paths, bytes, PIL images or (H, W, 3) uint8; any number.
        vectors: (N, D) float; `fingerprint`: of their encoder, "" skips the check.
        collection, ids: items.
        top: number of classes to report with their probability.

    Raises:
        ProbeNotFound: the probe does not exist.
        CollectionNotFound: the collection does not exist.
        FingerprintMismatch: the vectors come from another encoder than the probe's.
        InvalidRequest: an argument is invalid, or images, vectors and ids are combined.
    """
    path = f"{_path(name)}/predict"
    if images is None:
        body: dict[str, Any] = {"top": top}
        if vectors is not None:
            body |= {"vectors": [encode_vector(row) for row in np.asarray(vectors)], "fingerprint": fingerprint}
        if ids is not None:
            body |= {"collection": collection, "ids": check_ids(ids)}
        count = len(body.get("vectors", body.get("ids", ())))
        return (yield from perform(_prediction(path, count, body)))
    files: list[tuple[str, bytes] | NNCLRHubError] = yield from in_thread(lambda: [_read(image) for image in images])
    results: list[Labeling | NNCLRHubError | None] = [one if isinstance(one, NNCLRHubError) else None for one in files]
    readable = [(i, one) for i, one in enumerate(files) if not isinstance(one, NNCLRHubError)]
    for batch in bounded(readable, lambda one: len(one[1][1])):
        parts: list[File] = [("files", file) for _, file in batch]
        for (i, _), answer in zip(
            batch, (yield from perform(_prediction(path, len(batch), None, parts, top))), strict=True
        ):
            results[i] = answer
    return [one for one in results if one is not None]


def export(name: str, folder: str | Path) -> Steps[Path]:
    """Write the probe's files to a folder, for `LinearProbe.load` and `nnclr probe predict`.

    Raises:
        ProbeNotFound: names the existing ones.
    """
    content = yield from perform(
        Call("GET", f"{_path(name)}/export", lambda answer: answer.body, params={"format": "zip"})
    )
    return (yield from in_thread(lambda: _unzip(content, Path(folder))))


def _path(name: str) -> str:
    return f"{ROOT}/{check_name(name, 'Probe name')}"


def _labels(vectors: Any, images: Any, labels: Any) -> list[Any]:
    if (vectors is None) == (images is None) or labels is None:
        raise InvalidRequest("A probe is fitted on vectors or images, with labels; give labels and one of the two.")
    count = len(vectors if images is None else images)
    if count != len(labels):
        raise InvalidRequest(f"{len(labels)} labels were given for {count} rows; give one for each.")
    return [_plain(one) for one in labels]


def _plain(label: Any) -> Any:
    """Return a label in its JSON form."""
    if isinstance(label, str | int) and not isinstance(label, bool):
        return label
    if isinstance(label, np.integer):
        return int(label)
    if isinstance(label, list | tuple | set | frozenset):
        return [_plain(one) for one in label]
    raise InvalidRequest(f"{label!r:.100} is not a valid label; use strings or whole numbers.")


def _prediction(
    path: str, count: int, body: Any, files: Sequence[File] = (), top: int = 5
) -> Call[list[Labeling | NNCLRHubError]]:
    def read(answer: Answer) -> list[Labeling | NNCLRHubError]:
        if answer.status >= 300:
            errors = failures(answer)
            return [errors[i] for i in range(count)]
        return [_labeling(entry) for entry in answer.json()["results"]]

    takes = reports_each(count)
    return Call("POST", path, read, json=body, files=files, fields={"top": str(top)} if files else {}, takes=takes)


def _labeling(entry: dict[str, Any]) -> Labeling | NNCLRHubError:
    if entry.get("error") is not None:
        return make_error(entry["error"]["code"], entry["error"]["detail"])
    label = tuple(entry["labels"]) if entry.get("labels") is not None else entry.get("label")
    return Labeling(label, tuple((one["label"], one["probability"]) for one in entry["top"]))


def _read(image: ImageLike) -> tuple[str, bytes] | NNCLRHubError:
    try:
        return image_file(image)
    except InvalidRequest:
        raise
    except NNCLRHubError as error:
        return error


def _info(body: dict[str, Any]) -> ProbeInfo:
    known: dict[str, Any] = {one.name: body[one.name] for one in fields(ProbeInfo)}
    known["classes"] = tuple(body["classes"])
    return ProbeInfo(**known)


def _unzip(content: bytes, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for name in FILES:
                if archive.getinfo(name).file_size > LARGEST:
                    raise ServiceError(
                        f"The server sent {name} with more than {LARGEST / 1e6:.0f} MB, too much for a probe."
                    )
                (folder / name).write_bytes(archive.read(name))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ServiceError(f"The server's answer is not a probe ({error}); it may have another version.") from error
    return folder
