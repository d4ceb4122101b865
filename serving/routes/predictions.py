"""POST /api/v1/probes/{name}/predict: the labels that a probe gives to items, vectors or images."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import ConfigDict, Field, FiniteFloat, model_validator

from nnclr_hub.errors import (
    AnswerTooLarge,
    CollectionNotFound,
    FingerprintMismatch,
    ImageError,
    InvalidRequest,
    ModelError,
    NNCLRHubError,
    ProbeNotFound,
)
from nnclr_hub.probe.labeling import Labeling
from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.payload import decode_vector
from nnclr_hub.workbench.privacy import without_paths

from ..answers import AnswerEncoder, PartsResponse, encoded
from ..keys import READ
from ..limits import in_thread_while_connected, while_connected
from ..models import Model
from ..problems import UNREADABLE, answers, problem
from ..request_bodies import UploadedImage, decode_each, is_form, parse, read_form, read_json
from ..security.access import requires
from ..url_fetcher import Fetcher
from .bodies import CollectionName, ImageText, Integer, ItemError, Strict, form_body, one_of
from .dependencies import AppAnswers, AppFetcher, AppSettings, AppWorkbench
from .probes import Label

router = APIRouter(prefix="/api/v1/probes", tags=["probes"])
MOST_TOP = 100
TOP = 5


class PredictRequest(Strict):
    """Exactly one of vectors, images, and ids with their collection."""

    model_config = ConfigDict(json_schema_extra=one_of("ids collection", "vectors", "images"))

    collection: CollectionName | None = None
    ids: list[str] | None = Field(None, min_length=1, max_length=MAX_LIMIT)
    vectors: list[list[FiniteFloat] | str] | None = Field(
        None, min_length=1, max_length=MAX_LIMIT, description="numbers, or base64 of little-endian float32"
    )
    images: list[ImageText] | None = Field(None, min_length=1)
    fingerprint: str = Field("", description="fingerprint of the encoder of the vectors; empty: not checked")
    top: Integer = Field(TOP, ge=1, le=MOST_TOP, description="number of classes whose probabilities to return")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.ids, self.vectors, self.images)) != 1:
            raise ValueError("give exactly one of ids, vectors and images")
        if (self.ids is None) != (self.collection is None):
            raise ValueError("ids need a collection")
        return self


class Probability(Strict):
    """A class and its probability."""

    label: Label
    probability: float


class PredictionEntry(Strict):
    """The prediction for one item, or its error."""

    index: int
    id: str | None = Field(None, description="id of an item of the collection")
    name: str | None = Field(None, description="name of an uploaded file")
    label: Label | None = Field(None, description="most probable class; null below the threshold")
    labels: list[Label] | None = Field(None, description="for a multi-label probe: all classes above the threshold")
    top: list[Probability] | None = None
    error: ItemError | None = None


class PredictResponse(Strict):
    """One entry per item, in order."""

    probe: str
    results: list[PredictionEntry]


_PREDICT_BODY = form_body(
    {"files": "many", "top": "number of classes whose probabilities to return"}, required=["files"], json=PredictRequest
)


@router.post(
    "/{name}/predict",
    response_model=PredictResponse,
    responses=answers(
        ProbeNotFound,
        AnswerTooLarge,
        CollectionNotFound,
        FingerprintMismatch,
        *UNREADABLE,
        ModelError,
        "unsupported_media_type",
    ),
    openapi_extra=_PREDICT_BODY,
)
@requires(READ)
async def predict(
    name: str,
    request: Request,
    bench: AppWorkbench,
    settings: AppSettings,
    fetcher: AppFetcher,
    limits: AppAnswers,
) -> Response:
    """Predict the labels of items, vectors or images.

    The response has a prediction or an error for each: 200 if at least one has a prediction, else 422.
    """
    query, images = await _read(request, settings.max_images, fetcher)
    vectors = await _embedded(request, bench, name, images) if images else []

    def labeled() -> Response:
        answer = limits.open(request.state.budget)
        results = _of_images(bench, name, vectors, query.top) if images else _of_others(bench, name, query)
        return _response(request.url.path, name, query, images, results, answer)

    return await in_thread_while_connected(request, labeled, request.app.state.search_threads)


async def _embedded(
    request: Request, bench: Workbench, name: str, images: list[UploadedImage]
) -> list[np.ndarray | ImageError]:
    """Return the vector of each image, or its error; no thread waits while they are embedded."""
    model = cast(Model, await run_in_threadpool(bench.embedder_of_probe, name))
    good = [one.data for one in images if isinstance(one.data, bytes)]
    vectors = iter(await while_connected(request, model.embed_each_async(good)))
    return [one.data if isinstance(one.data, ImageError) else next(vectors) for one in images]


def _of_images(
    bench: Workbench, name: str, vectors: list[np.ndarray | ImageError], top: int
) -> list[Labeling | NNCLRHubError]:
    """Predict the label of each image that could be embedded."""
    good = [row for row in vectors if isinstance(row, np.ndarray)]
    labeled = iter(bench.predict(name, vectors=np.stack(good), k=top) if good else ())
    return [row if isinstance(row, ImageError) else next(labeled) for row in vectors]


def _of_others(bench: Workbench, name: str, query: PredictRequest) -> list[Labeling | NNCLRHubError]:
    """Predict the label of each vector or item."""
    vectors = None
    if query.vectors is not None:
        rows = [decode_vector(row, f"vectors[{i}]") for i, row in enumerate(query.vectors)]
        if len({len(row) for row in rows}) > 1:
            raise InvalidRequest("The vectors have different lengths; send vectors of one encoder.")
        vectors = np.stack(rows)
    return bench.predict(
        name,
        vectors=vectors,
        collection=query.collection,
        ids=query.ids,
        fingerprint=query.fingerprint,
        k=query.top,
    )


async def _read(request: Request, limit: int, fetcher: Fetcher | None) -> tuple[PredictRequest, list[UploadedImage]]:
    """Read the query and its images."""
    if not is_form(request):
        query = await read_json(request, PredictRequest)
        return query, await decode_each(query.images or (), "images", limit, fetcher)
    form = await read_form(request, texts=("top",))
    uploaded = form.images("files", limit)
    # the other fields are checked as those of a JSON body, with empty texts as images
    top = form.texts.get("top", str(TOP))
    body = json.dumps({"images": [""] * len(uploaded), "top": int(top) if re.fullmatch("[0-9]{1,9}", top) else top})
    return parse(body, PredictRequest, ("body",)), uploaded


def _response(
    path: str,
    probe: str,
    query: PredictRequest,
    images: Sequence[UploadedImage],
    results: Sequence[Labeling | NNCLRHubError],
    encoder: AnswerEncoder,
) -> Response:
    """Return one entry per result, as `PredictResponse` describes them, or a problem if all of them are errors."""
    broken = [
        {"index": i, "code": one.code, "detail": without_paths(str(one))}
        for i, one in enumerate(results)
        if isinstance(one, NNCLRHubError)
    ]
    if len(broken) == len(results):
        detail = f"None of the {len(results)} predictions succeeded; first error: {broken[0]['detail']}"
        return problem(path, 422, str(broken[0]["code"]), detail, items=broken)
    names: Sequence[dict[str, Any]] = (
        [{"id": id} for id in query.ids or ()] or [{"name": one.name} for one in images] or [{}] * len(results)
    )
    entries = (_entry(i, about, one) for i, (one, about) in enumerate(zip(results, names, strict=True)))
    return PartsResponse([b'{"probe":', encoded(probe), b',"results":', *encoder.list(entries), b"}"])


def _entry(index: int, about: dict[str, Any], result: Labeling | NNCLRHubError) -> dict[str, Any]:
    """Return the fields of a `PredictionEntry` that are not null."""
    if isinstance(result, NNCLRHubError):
        found: dict[str, Any] = {"error": {"code": result.code, "detail": without_paths(str(result))}}
    else:
        name = "labels" if isinstance(result.label, tuple) else "label"
        top = [{"label": label, "probability": value} for label, value in result.top]
        found = {name: result.label, "top": top}
    return {name: value for name, value in {"index": index, **about, **found}.items() if value is not None}
