"""POST /api/v1/collections/{name}/search, as JSON or multipart."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from nnclr_hub.errors import InvalidRequest

from ..payloads import decode_vector, read_pictures
from ..schemas import MatchResponse, SearchRequest, SearchResponse
from .state import AppFetcher, AppWorkbench

router = APIRouter(prefix="/api/v1/collections/{name}", tags=["search"])
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": SearchRequest.model_json_schema(ref_template="#/components/schemas/{model}")
            },
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {
                        "image": {"type": "string", "format": "binary"},
                        "query": {"type": "string", "description": "JSON with the other fields"},
                    },
                }
            },
        },
    }
}


@router.post("/search", openapi_extra=_BODY)
async def search(name: str, request: Request, bench: AppWorkbench, fetcher: AppFetcher) -> SearchResponse:
    """The nearest items of an id, a picture (or a box on it) or a vector, best first."""
    query, picture = await _read(request)
    if query.image is not None:
        if picture is not None:
            raise InvalidRequest("The picture is given twice: as a file, and in the query.")
        [picture] = await read_pictures({"image": query.image}, fetcher)
    matches = await run_in_threadpool(
        bench.search,
        name,
        image=picture,
        box=query.box,
        vector=None if query.vector is None else decode_vector(query.vector, "vector"),
        id=query.id,
        k=query.k,
        where=query.where,
        exact=query.exact,
        score_threshold=query.score_threshold,
        with_vector=query.with_vector,
        effort=query.effort,
    )
    return SearchResponse(
        matches=[
            MatchResponse(
                id=match.id,
                score=match.score,
                metadata=dict(match.metadata),
                vector=None if match.vector is None else match.vector.tolist(),
            )
            for match in matches
        ]
    )


async def _read(request: Request) -> tuple[SearchRequest, bytes | None]:
    """The query, and the picture of a multipart request."""
    picture = None
    text: str | bytes
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with request.form() as form:
            file, part = form.get("image"), form.get("query")
            if not isinstance(file, UploadFile):
                raise InvalidRequest(
                    "A multipart search has a file part named image, and may have a JSON part named query."
                )
            picture = await file.read()
            text = await part.read() if isinstance(part, UploadFile) else part or "{}"
    else:
        text = await request.body()
    try:
        return SearchRequest.model_validate_json(text), picture
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False, include_context=False)) from error
