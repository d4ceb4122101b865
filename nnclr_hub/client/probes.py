"""Linear probes of a server: fit, list, predict, export."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnclr_hub.arguments import Checked
from nnclr_hub.client.jobs import Job, RemoteJobs
from nnclr_hub.client.transport import Call, Connection, make_error
from nnclr_hub.client.uploads import files_of, send_files
from nnclr_hub.errors import InvalidRequest, NNCLRHubError, ProbeNotFound, ServiceError
from nnclr_hub.plural import counted
from nnclr_hub.probe.metrics import Label, Labeling
from nnclr_hub.store.base import Where
from nnclr_hub.store.checks import check_ids, check_name
from nnclr_hub.workbench.payload import encode_vector

if TYPE_CHECKING:
    from nnclr_hub.encoder.embedder import ImageLike

ROOT = "/api/v1/probes"
FILES = ("probe.safetensors", "probe.json", "card.json")
LARGEST = 100_000_000  # bytes of a file of a probe


@dataclass(frozen=True)
class ProbeInfo:
    """A probe of a server.

    rows: number of rows that it was fitted on.
    held_out: number of rows on which `scores` (top1, mean_per_class, ...) were measured.
    fingerprint: fingerprint of the encoder that its vectors must come from.
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

    @classmethod
    def of(cls, body: dict[str, Any]) -> ProbeInfo:
        """Read a probe."""
        known: dict[str, Any] = {one.name: body[one.name] for one in fields(cls)}
        known["classes"] = tuple(body["classes"])
        return cls(**known)


class RemoteProbes(Checked):
    """Linear probes of a server.

    Args:
        embed: returns the name of a model and the vectors of images (N, D).
    """

    def __init__(
        self,
        connection: Connection,
        embed: Callable[[Sequence[ImageLike], str | None], tuple[str, np.ndarray]],
    ) -> None:
        self._connection, self._embed = connection, embed

    def fit(
        self,
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
    ) -> Job:
        """Start to fit a probe; `jobs.wait` waits for it.

        Args:
            collection, field: fit on the vectors of items and that metadata field; `where`: only on items that pass.
            vectors or images, labels: or fit on rows (N, D) or images, any number, with a label (or several) for each.
            model: the encoder of the vectors, or the one to embed the images with.
            l2, balanced, threshold, reject_far: see `fit_linear_probe`.
            replace: replace a probe of the same name.
        """
        from nnclr_hub.workbench.probes import ProbeFit

        check_name(name, "Probe name")
        items = None
        if vectors is not None or images is not None or labels is not None:
            known = _labels(vectors, images, labels)  # errors are reported before anything is sent
            if images is not None:  # they may be more than one request holds
                model, vectors = self._embed(images, model)
            rows = zip(vectors, known, strict=True) if vectors is not None else ()
            items = [{"vector": encode_vector(row), "label": label} for row, label in rows]
        options: Any = {"l2": l2, "balanced": balanced, "threshold": threshold, "reject_far": reject_far}
        options |= {"collection": collection, "field": field, "where": where, "items": items, "model": model}
        return RemoteJobs(self._connection).start("probe_fit", ProbeFit(name=name, replace=replace, **options))

    def get(self, name: str) -> ProbeInfo:
        """Return a probe."""
        return self._connection.send(Call("GET", _path(name))).read(ProbeInfo.of)

    def list(self) -> list[ProbeInfo]:
        """Return all probes, by name."""
        answer = self._connection.send(Call("GET", ROOT))
        return answer.read(lambda body: [ProbeInfo.of(one) for one in body["probes"]])

    def delete(self, name: str) -> None:
        """Delete a probe."""
        self._connection.send(Call("DELETE", _path(name), gone=ProbeNotFound))

    def predict(
        self,
        name: str,
        images: Sequence[ImageLike] | None = None,
        *,
        vectors: np.ndarray | None = None,
        fingerprint: str = "",
        collection: str | None = None,
        ids: Sequence[str] | None = None,
        top: int = 5,
    ) -> list[Labeling | NNCLRHubError]:
        """Return a probe's labeling of images, rows, or items of a collection: one entry each, or its error.

        Args:
            images: paths, bytes, PIL images or (H, W, 3) uint8; any number.
            vectors: (N, D) float; `fingerprint`: of their encoder, "" skips the check.
            collection, ids: items.
            top: number of classes to report with their probability.
        """
        path = f"{_path(name)}/predict"
        if images is None:
            body: dict[str, Any] = {"top": top}
            if vectors is not None:
                body |= {"vectors": [encode_vector(row) for row in np.asarray(vectors)], "fingerprint": fingerprint}
            if ids is not None:
                body |= {"collection": collection, "ids": check_ids(ids)}
            parts = len(body.get("vectors", body.get("ids", ())))
            answer = self._connection.send(Call("POST", path, json=body, parts=parts))
            return answer.read(_read_labelings) if answer.status < 300 else [answer.failures[i] for i in range(parts)]
        results: list[Any] = [None] * len(images)
        files, fields = files_of(images, results), {"top": str(top)}
        send_files(
            self._connection, path, files, results, _read_labelings, fields=lambda _: fields, failed=lambda error: error
        )
        return results

    def export(self, name: str, folder: str | Path) -> Path:
        """Write the probe's files to a folder, for `LinearProbe.load` and `nnclr probe predict`."""
        content = self._connection.send(Call("GET", f"{_path(name)}/export")).body
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for file in FILES:
                    if archive.getinfo(file).file_size > LARGEST:
                        raise ServiceError(
                            f"The server sent {file} with more than {LARGEST / 1e6:.0f} MB, too much for a probe."
                        )
                    (folder / file).write_bytes(archive.read(file))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ServiceError(f"The server's answer is not a probe ({error}); it may have another version.") from error
        return folder


def _path(name: str) -> str:
    return f"{ROOT}/{check_name(name, 'Probe name')}"


def _labels(vectors: Any, images: Any, labels: Any) -> list[Any]:
    if (vectors is None) == (images is None) or labels is None:
        raise InvalidRequest("A probe is fitted on vectors or images, with labels; give labels and one of the two.")
    count = len(vectors if images is None else images)
    if count != len(labels):
        raise InvalidRequest(f"Got {counted(len(labels), 'label')} for {counted(count, 'row')}; give one for each.")
    return [_plain(one) for one in labels]


def _plain(label: Any) -> Any:
    if isinstance(label, str | int) and not isinstance(label, bool):
        return label
    if isinstance(label, np.integer):
        return int(label)
    if isinstance(label, list | tuple | set | frozenset):
        return [_plain(one) for one in label]
    raise InvalidRequest(f"{label!r:.100} is not a valid label; use strings or whole numbers.")


def _read_labelings(body: Any) -> list[Labeling | NNCLRHubError]:
    def read(entry: dict[str, Any]) -> Labeling | NNCLRHubError:
        if entry.get("error") is not None:
            return make_error(entry["error"]["code"], entry["error"]["detail"])
        label = tuple(entry["labels"]) if entry.get("labels") is not None else entry.get("label")
        return Labeling(label, tuple((one["label"], one["probability"]) for one in entry["top"]))

    return [read(entry) for entry in body["results"]]
