# Written by `make generate` from the methods of Client; do not edit.
# ruff: noqa: I001

import builtins
import numpy as np
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from nnclr_hub.client.client import ServedModel
from nnclr_hub.client.jobs import Job
from nnclr_hub.client.probes import ProbeInfo
from nnclr_hub.encoder.attention import Box
from nnclr_hub.encoder.attention import Query
from nnclr_hub.encoder.attention.maps import AttentionMap
from nnclr_hub.encoder.embedder import ImageLike
from nnclr_hub.errors import ImageError
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.probe.labeling import Label
from nnclr_hub.probe.labeling import Labeling
from nnclr_hub.store.base import ById
from nnclr_hub.store.base import Item
from nnclr_hub.store.base import Match
from nnclr_hub.store.base import Page
from nnclr_hub.store.base import Progress
from nnclr_hub.store.base import SearchOptions
from nnclr_hub.store.base import Where
from nnclr_hub.store.facets import Facet
from nnclr_hub.store.reports import ChangePage
from nnclr_hub.store.reports import CollectionInfo
from nnclr_hub.store.reports import RepairReport
from nnclr_hub.store.reports import VerifyReport
from nnclr_hub.store.spec import Compared
from nnclr_hub.store.spec import IndexName
from nnclr_hub.store.spec import Metric
from nnclr_hub.store.spec import Precision
from nnclr_hub.table_rows import LabelTable
from nnclr_hub.workbench.add_request import AddRequest
from nnclr_hub.workbench.add_request import NewImage
from nnclr_hub.workbench.folder_changes import IndexReport
from nnclr_hub.workbench.inspections import KeptInspection
from nnclr_hub.workbench.inspections import Placements
from nnclr_hub.workbench.search_query import Answer
from nnclr_hub.workbench.search_query import Example
from nnclr_hub.workbench.search_query import SearchQuery
from nnclr_hub.workbench.tasks import Request
from pathlib import Path
from typing import Any
from typing import Self

class AsyncCollection:
    async def info(self) -> CollectionInfo: ...
    async def upsert(self, items: Sequence[Item], *, fingerprint: str | None = ...) -> int: ...
    async def delete(self, ids: Sequence[str] | None = ..., *, where: Where | None = ...) -> int: ...
    async def update_metadata(
        self,
        metadata: Mapping[str, Any],
        *,
        ids: Sequence[str] | None = ...,
        where: Where | None = ...,
        replace: bool = ...,
        keep: Sequence[str] = ...,
    ) -> int: ...
    async def update_each(self, metadata: ById, *, expected: ById | None = ..., keep: Sequence[str] = ...) -> int: ...
    async def get(self, ids: Sequence[str]) -> builtins.list[Item]: ...
    async def count(self, where: Where | None = ...) -> int: ...
    async def facets(
        self, keys: Sequence[str], where: Where | None = ..., limit: int = ..., *, bins: int = ...
    ) -> dict[str, Facet]: ...
    async def scroll(
        self, cursor: str | None = ..., limit: int = ..., where: Where | None = ..., *, with_vector: bool = ...
    ) -> Page: ...
    async def change_indexed(self, keys: Sequence[str]) -> None: ...
    async def thumbnail(self, id: str) -> bytes: ...
    async def thumbnails(self, ids: Sequence[str]) -> builtins.list[bytes | None]: ...
    async def search(
        self,
        query: SearchQuery | np.ndarray | None = ...,
        k: int = ...,
        where: Where | None = ...,
        *,
        vector: np.ndarray | None = ...,
        image: ImageLike | None = ...,
        box: Box | None = ...,
        id: str | None = ...,
        positive: Sequence[Example] = ...,
        negative: Sequence[Example] = ...,
        offset: int = ...,
        exact: bool = ...,
        score_threshold: float | None = ...,
        with_vector: bool = ...,
        effort: int | None = ...,
        with_percentile: bool = ...,
        group_by: str | None = ...,
    ) -> builtins.list[Match]: ...
    async def search_queries(self, queries: Sequence[SearchQuery]) -> builtins.list[Answer]: ...
    async def nearest(
        self, vectors: Sequence[np.ndarray] | np.ndarray, k: int, options: SearchOptions
    ) -> builtins.list[builtins.list[Match]]: ...
    async def percentiles(self, scores: Sequence[float]) -> builtins.list[float] | None: ...
    async def add_images(self, images: AddRequest | Sequence[NewImage]) -> builtins.list[ImageError | None]: ...
    async def index_folder(
        self,
        folder: str | Path,
        *,
        prune: bool = ...,
        thumbnails: bool = ...,
        workers: int = ...,
        shrink: int | None = ...,
        source: str | None = ...,
        labels: LabelTable | str | Path | None = ...,
        progress: Progress = ...,
    ) -> IndexReport: ...
    async def import_file(self, path: str | Path, *, format: str | None = ..., progress: Progress = ...) -> Job: ...
    async def abandon_import(self, path: str | Path) -> None: ...
    async def changes(
        self, since: int = ..., limit: int = ..., *, wait: float = ..., log: str | None = ...
    ) -> ChangePage: ...
    async def snapshot(self) -> None: ...
    async def verify(self, progress: Progress = ...) -> VerifyReport: ...
    async def compact(self, progress: Progress = ...) -> None: ...
    async def repair(self, progress: Progress = ...) -> RepairReport: ...
    async def abandon_reembed(self) -> None: ...
    async def inspections(self) -> builtins.list[int]: ...
    async def inspection(self, number: int | None = ...) -> KeptInspection: ...
    async def placements(self, number: int | None = ..., cursor: str | None = ..., limit: int = ...) -> Placements: ...

class AsyncCollections:
    async def create(
        self,
        name: str,
        *,
        model: str | None = ...,
        dim: int | None = ...,
        metric: Metric = ...,
        indexed: Sequence[str] = ...,
        index: IndexName = ...,
        precision: Precision = ...,
        vectors: Compared = ...,
    ) -> CollectionInfo: ...
    async def get(self, name: str) -> CollectionInfo: ...
    async def drop(self, name: str) -> None: ...
    async def list(self) -> builtins.list[CollectionInfo]: ...

class AsyncAliases:
    async def point(self, alias: str, collection: str) -> None: ...
    async def list(self) -> dict[str, str]: ...
    async def forget(self, alias: str) -> None: ...

class AsyncProbes:
    async def fit(
        self,
        name: str,
        *,
        collection: str | None = ...,
        field: str | None = ...,
        where: Where | None = ...,
        vectors: np.ndarray | None = ...,
        images: Sequence[ImageLike] | None = ...,
        labels: Sequence[Label | Sequence[Label]] | None = ...,
        model: str | None = ...,
        l2: float | None = ...,
        balanced: bool = ...,
        threshold: float | None = ...,
        reject_far: float | None = ...,
        replace: bool = ...,
    ) -> Job: ...
    async def get(self, name: str) -> ProbeInfo: ...
    async def list(self) -> builtins.list[ProbeInfo]: ...
    async def delete(self, name: str) -> None: ...
    async def predict(
        self,
        name: str,
        images: Sequence[ImageLike] | None = ...,
        *,
        vectors: np.ndarray | None = ...,
        fingerprint: str = ...,
        collection: str | None = ...,
        ids: Sequence[str] | None = ...,
        top: int = ...,
    ) -> builtins.list[Labeling | NNCLRHubError]: ...
    async def export(self, name: str, folder: str | Path) -> Path: ...

class AsyncJobs:
    async def get(self, id: str) -> Job: ...
    async def list(self, limit: int = ...) -> builtins.list[Job]: ...
    async def cancel(self, id: str) -> Job: ...
    async def wait(self, id: str, *, timeout: float | None = ..., progress: Progress = ...) -> Job: ...

class AsyncClient:
    collections: AsyncCollections
    aliases: AsyncAliases
    probes: AsyncProbes
    jobs: AsyncJobs

    def __init__(self, url: str = ..., api_key: str | None = ..., timeout: float = ...) -> None: ...
    def collection(self, name: str) -> AsyncCollection: ...
    async def close(self) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exception: object) -> None: ...
    async def search_each(self, name: str, queries: Sequence[SearchQuery]) -> builtins.list[Answer]: ...
    async def add_images(
        self, name: str, images: AddRequest | Sequence[NewImage]
    ) -> builtins.list[ImageError | None]: ...
    async def index_folder(
        self,
        name: str,
        folder: str | Path,
        *,
        model: str | None = ...,
        vectors: str | None = ...,
        prune: bool = ...,
        thumbnails: bool = ...,
        workers: int = ...,
        shrink: int | None = ...,
        source: str | None = ...,
        labels: LabelTable | str | Path | None = ...,
        progress: Progress = ...,
    ) -> IndexReport: ...
    async def abandon_reembed(self, name: str) -> None: ...
    async def run(self, task: str, request: Request, progress: Progress = ...) -> Mapping[str, Any]: ...
    async def start(self, task: str, request: Request) -> Job: ...
    async def ready(self, *, wait: float = ...) -> bool: ...
    async def list_models(self) -> builtins.list[ServedModel]: ...
    async def model(self, name: str) -> ServedModel: ...
    async def embed_each(
        self, images: Iterable[ImageLike], model: str | None = ...
    ) -> builtins.list[np.ndarray | ImageError]: ...
    async def embed(self, images: Iterable[ImageLike], *, model: str | None = ...) -> np.ndarray: ...
    async def attention(
        self,
        image: ImageLike,
        query: Query | None = ...,
        target: ImageLike | builtins.list[Any] | tuple[Any, ...] | None = ...,
        similarity: str = ...,
        head: int | None = ...,
        threshold: float | None = ...,
        max_side: int | None = ...,
        *,
        model: str | None = ...,
        collection: str | None = ...,
    ) -> AttentionMap | builtins.list[AttentionMap]: ...
