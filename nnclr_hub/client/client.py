"""Client: a bench whose encoders and store are those of a server."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import numpy as np

from nnclr_hub.arguments import Checked, checked
from nnclr_hub.client.jobs import Job, RemoteJobs
from nnclr_hub.client.probes import RemoteProbes
from nnclr_hub.client.remote import RemoteCollection, RemoteStore
from nnclr_hub.client.transport import Call, Connection, make_error, to_json
from nnclr_hub.client.uploads import files_of, image_error, patiently, send_files, upload_file
from nnclr_hub.errors import (
    CollectionExists,
    CollectionNotFound,
    FingerprintMismatch,
    ImageError,
    InvalidRequest,
    ServerUnreachable,
)
from nnclr_hub.store.base import Progress
from nnclr_hub.workbench.bench import Inspected, Report, dropped_if_empty
from nnclr_hub.workbench.folder_changes import IndexReport, check_images
from nnclr_hub.workbench.metadata import path_of
from nnclr_hub.workbench.payload import decode_vector, image_file
from nnclr_hub.workbench.requests import AddRequest, FolderRequest, NewCollection, NewImage, Request
from nnclr_hub.workbench.search_query import Answer, SearchQuery
from nnclr_hub.workbench.tasks import find_task, portion

if TYPE_CHECKING:
    from nnclr_hub.encoder.attention import AttentionMap, Query
    from nnclr_hub.encoder.embedder import ImageLike

AT_ONCE = 2  # requests per call: the server decodes one while it embeds the other
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ServedModel:
    """A model of a server.

    name: its name in requests.
    embed_dim: D; 0 if unknown, as in a list of models that are not loaded.
    fingerprint: hash of weights and preprocessing; "" if unknown.
    """

    name: str
    embed_dim: int = 0
    fingerprint: str = ""

    @classmethod
    def of(cls, entry: dict[str, Any]) -> ServedModel:
        """Read a model."""
        return cls(entry["id"], entry.get("dim") or 0, entry.get("fingerprint") or "")


class Client(Checked):
    """A server. Each method blocks until its result is there. Threads may share one client.

    Args:
        timeout: seconds from a call to its result, including retries; uploads wait longer for a busy server.
    """

    @checked
    def __init__(
        self, url: str = "http://127.0.0.1:8000", api_key: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        self._connection = Connection(url, api_key, timeout)
        self.probes = RemoteProbes(self._connection, self._embed_by)
        self.jobs = RemoteJobs(self._connection)
        self.store = RemoteStore(self._connection)

    def __repr__(self) -> str:
        """Return the class and the server; never the API key."""
        return f"Client({self._connection.url!r})"

    def collection(self, name: str) -> RemoteCollection:
        """Return the collection of that name or alias. The first call fails if it does not exist."""
        return RemoteCollection(self._connection, name)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- as a bench

    @property
    def default_model(self) -> str:
        """The encoder that is used if none is named."""
        return self.list_models()[0].name

    def create_collection(self, name: str, request: NewCollection = NewCollection()) -> RemoteCollection:
        """Create a collection. Raises CollectionExists, or UnknownModel."""
        return self.store.create_for(name, request)

    def search_each(self, name: str, queries: Sequence[SearchQuery]) -> list[Answer]:
        """Return the matches of each query, or the error that concerns it alone."""
        return self.collection(name).search_queries(queries)

    def add_images(self, name: str, images: AddRequest | Sequence[NewImage]) -> list[ImageError | None]:
        """Add images to a collection; return one entry per image: None or its error."""
        return self.collection(name).add_images(images)

    def rename(self, name: str, to: str) -> None:
        """Rename a collection; its aliases, inspections and labels of keys follow."""
        self.store.rename(name, to)

    def drop(self, name: str) -> None:
        """Delete a collection with everything in it, and its aliases."""
        self.store.drop(name)

    def index_folder(
        self, name: str, folder: FolderRequest | str | Path, *, progress: Progress = lambda done, total: None
    ) -> IndexReport:
        """Make a collection hold a folder's images; see `Bench.index_folder`."""
        request, collection, created = FolderRequest.of(folder), self.collection(name), False
        patient = patiently(self._connection)
        try:
            spec = collection.spec
        except CollectionNotFound:
            check_images(request)
            created = RemoteStore(patient).put(name, NewCollection(request.model))
        else:
            options: Any = {one: getattr(spec, one) for one in ("metric", "indexed", "index", "precision", "vectors")}
            try:  # only the server knows whether the collection has this model
                if request.model is not None:
                    RemoteStore(patient).put(collection.name, NewCollection(request.model, **options))
            except CollectionExists as error:
                raise FingerprintMismatch(
                    f"Collection {name!r} holds vectors of {spec.model or 'an unknown encoder'}, not of "
                    f"{request.model}; leave out the model, or use another collection."
                ) from error
        with dropped_if_empty(self.store, name if created else None):
            return RemoteCollection(patient, name).index_folder(request, progress=progress)

    def inspect(self, request: Any, folder: Path, report: Report = lambda title: lambda done, total: None) -> Inspected:
        """Inspect a collection in a job; write the tables. The report is a page of the web app."""
        from nnclr_hub.workbench.inspection.findings import write_findings

        self.run("inspection", request, report("inspecting"))
        collection = self.collection(request.collection)
        paths = {item.id: path_of(item) for items in collection.pages(with_vector=False) for item in items}
        page = f"{self._connection.url.rstrip('/')}/#/insights/{quote(request.collection)}"
        findings = dict(collection.inspection().findings)
        return Inspected(findings, paths, page, write_findings(findings, folder, paths))

    def run(self, task: str, request: Request, progress: Progress = lambda done, total: None) -> Mapping[str, Any]:
        """Run a task of `workbench.tasks` as a job of the server, and return its result as JSON.

        If it imports a file, the upload is the first half of the progress.
        """
        if find_task(task, request).upload:
            job = self.start(task, request, portion(progress, 0, 0.5))
            return self.jobs.wait(job.id, progress=portion(progress, 0.5, 1)).result or {}
        return self.jobs.wait(self.start(task, request).id, progress=progress).result or {}

    def start(self, task: str, request: Request, progress: Progress = lambda done, total: None) -> Job:
        """Start a job that runs a task of `workbench.tasks`; `jobs.wait` waits for it.

        Args:
            progress: called with (done, total) bytes while a file is uploaded.
        """
        found = find_task(task, request)
        if not found.upload:
            return self.jobs.start(task, request)
        path, _, _ = found.call(request)  # refuses what only a store of this machine has
        self._connection.send(Call("GET", f"/api/v1{path.rpartition('/')[0]}"))  # a wrong name, before a file is read
        file, format = Path(getattr(request, found.upload)), getattr(request, "format", None)
        return Job.of(upload_file(patiently(self._connection), f"/api/v1{path}", file, format or None, progress))

    # ---- models

    def ready(self, *, wait: float = 0.0) -> bool:
        """Return whether the server is up, its model loaded and its collections open.

        Args:
            wait: seconds to wait for that.

        Raises:
            ServerUnreachable: if nothing answers, even at the end of `wait`.
        """
        end = time.monotonic() + wait
        while True:
            try:
                answer = self._connection.send(Call("GET", "/readyz", accepts=[503], once=True))
                yes = answer.read(lambda body: body["status"] == "ready") and answer.status == 200
            except ServerUnreachable:
                if time.monotonic() >= end:
                    raise
                yes = False
            if yes or time.monotonic() >= end:
                return yes
            self._connection.pause(0.2)

    def list_models(self) -> list[ServedModel]:
        """Return the models that requests may name, the default first."""
        answer = self._connection.send(Call("GET", "/v1/models"))
        return answer.read(lambda body: [ServedModel.of(one) for one in body["data"]])

    def model(self, name: str) -> ServedModel:
        """Return one model; the server loads it if necessary.

        Raises:
            UnknownModel: if the server has no model of that name.
        """
        return self._connection.send(Call("GET", f"/v1/models/{quote(name, errors='replace')}")).read(ServedModel.of)

    def embed_each(self, images: Iterable[ImageLike], model: str | None = None) -> list[np.ndarray | ImageError]:
        """Return one entry per image: its (D,) float32 unit vector, or its ImageError; any number of images.

        Args:
            images: paths, files' bytes, PIL images or (H, W, 3) uint8.
            model: a name of `list_models`; None: the server's default.
        """
        sources = list(images)
        results: list[Any] = [None] * len(sources)
        fields = {} if model is None else {"model": model}
        short = {"encoding_format": "base64"}  # a list of numbers takes 20 times as long to read

        def read(body: Any) -> Iterator[np.ndarray | ImageError]:
            for entry in body["data"]:
                if "error" in entry:
                    yield image_error(make_error(entry["error"]["code"], entry["error"]["detail"]))
                else:
                    yield decode_vector(entry["embedding"], "embedding")

        options: Any = {"fields": lambda _: fields, "params": short, "workers": AT_ONCE}
        send_files(self._connection, "/api/v1/embed", files_of(sources, results), results, read, **options)
        return results

    def embed(self, images: Iterable[ImageLike], *, model: str | None = None) -> np.ndarray:
        """Return (N, D) float32 unit rows.

        Raises:
            ImageError: for the first image that cannot be read; names it.
        """
        sources = list(images)
        results = self.embed_each(sources, model)
        for index, result in enumerate(results):
            if isinstance(result, ImageError):
                raise result.for_image(sources[index], index) from result
        if results:
            return np.stack(results)  # type: ignore[arg-type]
        name = model if model is not None else self.list_models()[0].name
        return np.zeros((0, self.model(name).embed_dim), np.float32)

    def _embed_by(self, images: Sequence[ImageLike], model: str | None) -> tuple[str, np.ndarray]:
        name = model if model is not None else self.list_models()[0].name
        return name, self.embed(images, model=name)

    def attention(
        self,
        image: ImageLike,
        query: Query | None = None,
        target: ImageLike | list[Any] | tuple[Any, ...] | None = None,
        similarity: str = "dot",
        head: int | None = None,
        threshold: float | None = None,
        max_side: int | None = None,
        *,
        center_prior: bool | None = None,
        model: str | None = None,
        collection: str | None = None,
    ) -> AttentionMap | list[AttentionMap]:
        """Return the attention map of an image, with the arguments and results of `Encoder.attention`.

        Args:
            max_side: limit of the long side of the network's input, in pixels; None: 1024, or the server's limit.
            model: a name of `list_models`; None: the server's default, or the collection's own.

        Returns:
            The map of the image, or of the one target; a list for a list of targets.
        """
        several = isinstance(target, list | tuple)
        targets: list[Any] = [] if target is None else list(target) if several else [target]
        if several and not targets:
            raise InvalidRequest("The list of target images is empty; leave target out, or give an image.")
        said = {"similarity": similarity, "head": head, "threshold": threshold, "max_side": max_side}
        said |= {"center_prior": center_prior, "model": model, "collection": collection, **_query_fields(query)}
        files = [image_file(one) for one in (image, *targets)]
        parts = [("target" if i else "image", file) for i, file in enumerate(files)]
        fields = {"query": to_json({name: value for name, value in said.items() if value is not None})}
        answer = self._connection.send(Call("POST", "/api/v1/attention", files=parts, fields=fields))
        shown = [data for _, data in files[1:] or files]
        maps = answer.read(lambda body: [_map(one, data) for one, data in zip(body["maps"], shown, strict=True)])
        return maps if several else maps[0]


def _query_fields(query: Query | None) -> dict[str, Any]:
    if query is None:
        return {}
    from nnclr_hub.encoder.attention import Box, Point

    if not isinstance(query, Point | Box):
        raise InvalidRequest(f"query must be Point(x, y), Box(x0, y0, x1, y1) or None, got {query!r}.")
    return {"point" if isinstance(query, Point) else "box": [float(value) for value in astuple(query)]}


def _map(body: dict[str, Any], data: bytes) -> AttentionMap:
    """Return the map in a response, with the image, which the response does not contain."""
    from nnclr_hub.encoder.attention.geometry import Axis, Grid
    from nnclr_hub.encoder.attention.maps import AttentionMap
    from nnclr_hub.images.decode import decode_image

    values = np.array(body["values"], np.float32)
    across, down = (
        Axis(values.shape[1 - i], body["first"][i], body["stride"][i], body["input_size"][i], body["size"][i])
        for i in (0, 1)
    )
    low, high = body["limits"]
    return AttentionMap(values, body["kind"], Grid(down, across), (low, high), decode_image(data), body["center_prior"])
