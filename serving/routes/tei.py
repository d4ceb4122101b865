"""/embed, /info, /health and POST /: the API of Hugging Face's text-embeddings-inference (TEI), for images.

`huggingface_hub.InferenceClient(URL).feature_extraction(image_as_base64)` works with it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

import nnclr_hub
from nnclr_hub.errors import DeadlineExceeded, ImageError, ModelError, NotReady

from ..answers import NUMBER_BYTES, PartsResponse
from ..keys import READ
from ..problems import answers
from ..request_bodies import in_thread_if_large, json_of
from ..security.access import requires
from .bodies import FIRST_WRONG, Integer
from .dependencies import (
    AppAnswers,
    AppEngines,
    AppFetcher,
    AppHealthThreads,
    AppSettings,
    name_of,
    served_engine_async,
)
from .openai import LISTED, embed_listed

_Image = Annotated[str, Field(json_schema_extra={"minLength": 1})]


class TEIRequest(BaseModel):
    """The body of TEI; fields about text, such as `truncate` and `prompt_name`, are ignored."""

    model_config = ConfigDict(strict=True)

    inputs: _Image | Annotated[list[_Image], FIRST_WRONG, Field(json_schema_extra={"minItems": 1})] = Field(
        description="data URI or base64 of an image, or a list of up to 1024 of them"
    )
    normalize: Literal[True] | None = Field(None, description="vectors always have length 1")
    dimensions: Integer | None = Field(None, description="must be the length of the model's vectors")


class TEIModelType(BaseModel):
    embedding: dict[str, str]


class TEIInfo(BaseModel):
    """The default model and the limits of the server, as TEI describes them."""

    model_id: str
    model_sha: str = Field(description="the model's fingerprint")
    model_dtype: str
    model_type: TEIModelType
    max_concurrent_requests: int
    max_client_batch_size: int
    max_batch_requests: int
    auto_truncate: bool = True
    version: str


router = APIRouter(tags=["tei"])
_RESPONSES: dict[int | str, Any] = answers(ImageError, ModelError, DeadlineExceeded, "unsupported_media_type")


@router.post("/", include_in_schema=False)  # GET / leads people to the page
@router.post("/embed", response_model=list[list[float]], responses=_RESPONSES)
@requires(READ)
async def embed(
    request: Request,
    body: Annotated[TEIRequest, json_of(TEIRequest)],
    engines: AppEngines,
    settings: AppSettings,
    fetcher: AppFetcher,
    limits: AppAnswers,
) -> Response:
    """Embed images with the default model. A single unreadable image fails the request; the error names its index."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    engine = await served_engine_async(engines, None)
    vectors = await embed_listed(request, engine, texts, "inputs", body.dimensions, settings, fetcher)
    answer = limits.open(request.state.budget, 0)
    size = len(vectors) * engine.embed_dim * NUMBER_BYTES
    return await in_thread_if_large(size, lambda: PartsResponse(answer.list(vectors)))


@router.get("/info", responses=answers(ModelError))
@requires(READ)
async def info(engines: AppEngines, settings: AppSettings) -> TEIInfo:
    """Describe the default model and the limits."""
    engine = await served_engine_async(engines, None)
    return TEIInfo(
        model_id=name_of(engines, engine),
        model_sha=engine.fingerprint,
        model_dtype="float32",
        model_type=TEIModelType(embedding={"pooling": "mean"}),
        max_concurrent_requests=settings.connections,
        max_client_batch_size=LISTED,
        max_batch_requests=settings.max_batch,
        version=nnclr_hub.__version__,
    )


@router.get("/health", response_class=Response, responses=answers(NotReady))
@requires(None)
async def health(request: Request, threads: AppHealthThreads) -> Response:
    """Answer 200 without a body if the server is ready, and 503 otherwise; /readyz has the reason."""
    found = await to_thread.run_sync(request.app.state.readiness.report, limiter=threads)
    if found.status != "ready":
        raise NotReady("The server is not ready; GET /readyz for the reason.")
    return Response()
