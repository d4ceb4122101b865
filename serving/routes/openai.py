"""/v1: the embeddings and models API of OpenAI, for images."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from nnclr_hub.errors import DeadlineExceeded, ImageError, InvalidRequest, ModelError, UnknownModel
from nnclr_hub.hub.registry import MODELS
from nnclr_hub.workbench.payload import encode_vector

from ..answers import NUMBER_BYTES, PartsResponse, encoded
from ..keys import READ
from ..limits import while_connected
from ..models import Engines, Model
from ..problems import InvalidInput, answers
from ..request_bodies import check_count, decode_text, fetch_each, in_thread_if_large, json_of
from ..security.access import requires
from ..settings import Settings
from ..url_fetcher import Fetched, Fetcher
from .bodies import Integer
from .dependencies import (
    DEFAULT,
    AppAnswers,
    AppEngines,
    AppFetcher,
    AppSettings,
    name_of,
    served_engine_async,
    served_names,
)

LISTED = 1024  # images of a request; the clients of frameworks send lists of 100 to 1000


class ImageInput(BaseModel):
    """An image as Jina, Voyage and vLLM write it."""

    image: str = Field(description="data URI or base64 of an image; a web address if the server allows it")


class EmbeddingsRequest(BaseModel):
    """The body of the OpenAI API plus `modality`; other fields are ignored."""

    model_config = ConfigDict(strict=True)

    model: str = Field(description="an id from GET /v1/models, or default")
    # not validated by pydantic, which would name every member of the union in its errors, and not the wrong image
    input: SkipValidation[str | ImageInput | list[str | ImageInput]] = Field(
        description='data URI or base64 of an image, or {"image": ...}, or a list of up to 1024 of them'
    )

    def texts(self) -> list[str]:
        """Return the images as text.

        Raises:
            InvalidInput: one of them is neither text nor an object with an image.
        """
        found: list[str] = []
        for index, one in enumerate(self.input if isinstance(self.input, list) else [self.input]):
            text: Any = one.get("image") if isinstance(one, dict) else one
            if type(text) in (int, list):
                reason = InvalidRequest(
                    "holds token numbers, and the model embeds images; send each image as text (in LangChain, set "
                    "check_embedding_ctx_length=False)."
                )
                raise InvalidInput(f"input[{index}]", reason)
            if not isinstance(text, str):
                reason = InvalidRequest('must be a data URI or base64 of an image, or {"image": ...} with one.')
                raise InvalidInput(f"input[{index}]", reason)
            found.append(text)
        return found

    modality: Literal["image"] = "image"
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Integer | None = Field(None, description="must be the length of the model's vectors")
    user: str | None = None


class EmbeddingEntry(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Numbers of images, as there are no tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: Usage


class ModelCard(BaseModel):
    """A model as OpenAI lists it, with more details. Details are null until the model is loaded."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "nnclr_hub"
    loaded: bool = False
    dim: int | None = None
    fingerprint: str | None = None
    license: str | None = None
    preprocessing: dict[str, Any] | None = None


class ModelsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


router = APIRouter(prefix="/v1", tags=["openai"])
_WITH_MODEL = (UnknownModel, ModelError, DeadlineExceeded)


@router.post(
    "/embeddings",
    response_model=EmbeddingsResponse,
    responses=answers(*_WITH_MODEL, ImageError, "unsupported_media_type", openai=True),
)
@requires(READ)
async def embeddings(
    request: Request,
    body: Annotated[EmbeddingsRequest, json_of(EmbeddingsRequest)],
    engines: AppEngines,
    settings: AppSettings,
    fetcher: AppFetcher,
    limits: AppAnswers,
) -> Response:
    """Embed images. A single unreadable image fails the request; the error names its index."""
    inputs = body.texts()
    engine = await _served(engines, body.model)
    vectors = await embed_listed(request, engine, inputs, "input", body.dimensions, settings, fetcher)

    def response() -> Response:
        encode = encode_vector if body.encoding_format == "base64" else lambda vector: vector
        entries = ({"object": "embedding", "index": i, "embedding": encode(one)} for i, one in enumerate(vectors))
        usage = {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}
        head = encoded({"object": "list", "model": name_of(engines, engine), "usage": usage})[:-1]
        return PartsResponse([head, b',"data":', *limits.open(request.state.budget, 0).list(entries), b"}"])

    return await in_thread_if_large(len(vectors) * engine.embed_dim * NUMBER_BYTES, response)


async def embed_listed(
    request: Request,
    engine: Model,
    texts: list[str],
    field: str,
    dimensions: int | None,
    settings: Settings,
    fetcher: Fetcher | None,
) -> list[np.ndarray]:
    """Return the vector of each image, (D,) float32. A single unreadable image fails the request.

    Args:
        texts: data URIs, base64 or web addresses.
        field: of the body, for errors.
        dimensions: what the client expects; None: anything.

    Raises:
        InvalidInput: the list is empty, an image cannot be read, or the vectors have another length.
        RequestTooLarge: more than `LISTED` images.
    """
    if not texts:
        reason = InvalidRequest("the list is empty; send an image as a data URI or base64, or a list of them.")
        raise InvalidInput(field, reason)
    check_count(len(texts), max(settings.max_images, LISTED))
    if dimensions is not None and dimensions != engine.embed_dim:
        reason = InvalidRequest(f"must be {engine.embed_dim}, the length of the model's vectors, got {dimensions}.")
        raise InvalidInput("dimensions", reason)
    fetched = await fetch_each(texts, fetcher)

    def decode() -> list[bytes]:
        return [_decoded(text, f"{field}[{index}]", fetched) for index, text in enumerate(texts)]

    images = await in_thread_if_large(sum(map(len, texts)), decode)
    vectors: list[np.ndarray] = []
    for index, result in enumerate(await while_connected(request, engine.embed_each_async(images))):
        if isinstance(result, ImageError):
            raise InvalidInput(f"{field}[{index}]", result)
        vectors.append(result)
    return vectors


@router.get("/models", responses=answers(openai=True))
@requires(READ)
async def models(engines: AppEngines) -> ModelsResponse:
    """List the models that requests may name, the default first."""
    return ModelsResponse(data=[_card(engines, name, source) for name, source in served_names(engines).items()])


@router.get("/models/{name:path}", responses=answers(*_WITH_MODEL, openai=True))
@requires(READ)
async def model(name: str, engines: AppEngines) -> ModelCard:
    """Describe one model, and load it if needed."""
    engine = await _served(engines, name)
    return _card(engines, name if name == DEFAULT else name_of(engines, engine), engine.name, engine)


async def _served(engines: Engines, name: str) -> Model:
    try:
        return await served_engine_async(engines, name)
    except UnknownModel as error:
        raise InvalidInput("model", error) from error


def _decoded(text: str, place: str, fetched: Fetched) -> bytes:
    try:
        return decode_text(text, "the image", fetched)
    except InvalidRequest as error:
        raise InvalidInput(place, error) from error


def _card(engines: Engines, name: str, source: str, engine: Model | None = None) -> ModelCard:
    """Return the details of a model; if it is not loaded, those in the registry."""
    engine = engine or engines.loaded(source)
    known = MODELS.get(source)
    card = ModelCard(id=name, license=known.license if known else None, dim=known.embed_dim if known else None)
    if engine is None:
        return card
    config = engine.config
    pretrained = {} if config is None else config.pretrained_cfg
    return card.model_copy(
        update={
            "loaded": True,
            "dim": engine.embed_dim,
            "fingerprint": engine.fingerprint,
            "license": card.license or pretrained.get("license"),
            "preprocessing": None if engine.own_transform else engine.preprocessing.steps,
        }
    )
