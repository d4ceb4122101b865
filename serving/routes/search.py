"""POST /api/v1/collections/{name}/search, as JSON or multipart, and /search/batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from nnclr_hub.errors import (
    CollectionNotFound,
    DeadlineExceeded,
    FingerprintMismatch,
    ImageError,
    ImageTooLarge,
    InvalidFilter,
    InvalidRequest,
    ItemNotFound,
    NNCLRHubError,
    RequestTooLarge,
    UnsupportedImage,
)
from nnclr_hub.store.base import Match
from nnclr_hub.workbench.privacy import public_metadata, without_paths

from ..keys import READ
from ..problems import answers
from ..request_bodies import (
    FORM,
    JSON,
    in_thread_if_large,
    json_of,
    media_type,
    parse,
    read_form,
    read_json,
    unsupported,
)
from ..responses import VectorResponse
from ..schemas.search import SearchBatchRequest, SearchBatchResponse, SearchRequest, SearchResponse
from ..searching import search_each
from ..security.access import requires
from .body_schemas import form_body, json_body
from .dependencies import AppBoxThreads, AppFetcher, AppMetrics, AppSettings, AppWorkbench

router = APIRouter(prefix="/api/v1/collections/{name}", tags=["search"])
MAX_QUERIES = 64
_REFUSALS = (CollectionNotFound, FingerprintMismatch, DeadlineExceeded)


@router.post(
    "/search",
    response_model=SearchResponse,
    responses=answers(
        *_REFUSALS, ItemNotFound, InvalidFilter, ImageError, UnsupportedImage, ImageTooLarge, "unsupported_media_type"
    ),
    openapi_extra=form_body(
        {"image": "one", "query": "JSON with the other fields"}, required=["image"], json=SearchRequest
    ),
)
@requires(READ)
async def search(
    name: str,
    request: Request,
    bench: AppWorkbench,
    settings: AppSettings,
    metrics: AppMetrics,
    cropping: AppBoxThreads,
    fetcher: AppFetcher,
) -> Response:
    """The nearest items of an id, an image (or a box on it), a vector or several examples, best first."""
    query = await _read(request)
    limits = {"limit": settings.max_images, "cropping": cropping, "fetcher": fetcher}
    [answer] = await search_each(request, bench, metrics, name, [query], **limits)
    if isinstance(answer, NNCLRHubError):
        raise answer
    return VectorResponse({"matches": _matches(answer)})


@router.post(
    "/search/batch",
    response_model=SearchBatchResponse,
    responses=answers(*_REFUSALS, "unsupported_media_type"),
    openapi_extra=json_body(SearchBatchRequest),
)
@requires(READ)
async def search_batch(
    name: str,
    request: Request,
    body: Annotated[SearchBatchRequest, json_of(SearchBatchRequest)],
    bench: AppWorkbench,
    settings: AppSettings,
    metrics: AppMetrics,
    cropping: AppBoxThreads,
    fetcher: AppFetcher,
) -> Response:
    """Up to 64 searches at once: matches or an error each."""
    if len(body.queries) > MAX_QUERIES:
        raise RequestTooLarge(f"{len(body.queries)} queries are too many for one request: send at most {MAX_QUERIES}.")
    limits = {"limit": settings.max_images, "cropping": cropping, "fetcher": fetcher}
    found = await search_each(request, bench, metrics, name, body.queries, **limits)
    results: list[dict[str, Any]] = []
    for answer in found:
        if isinstance(answer, NNCLRHubError):
            results.append({"error": {"code": answer.code, "detail": without_paths(str(answer))}})
        else:
            results.append({"matches": _matches(answer)})
    return VectorResponse({"results": results})


def _matches(matches: Sequence[Match]) -> list[dict[str, Any]]:
    return [
        {
            "id": match.id,
            "score": match.score,
            "metadata": public_metadata(match.metadata),
            "vector": match.vector,
        }
        for match in matches
    ]


async def _read(request: Request) -> SearchRequest:
    """The query; in a multipart request the image is a file beside it."""
    kind = media_type(request)
    if kind == JSON:
        return await read_json(request, SearchRequest)
    if kind != FORM:
        raise unsupported(request, JSON, FORM)
    form = await read_form(request, files=("image",), texts=("query",))
    pictures = form.images("image", 1)
    text = form.texts.get("query") or "{}"
    query = await in_thread_if_large(len(text), parse, text, SearchRequest, ("query",))
    if query.image is not None:
        raise InvalidRequest("The image is given twice: as a file, and in the query.")
    assert isinstance(pictures[0].data, bytes)  # a file is never text that could not be decoded
    query.attach(pictures[0].data)
    return query
