"""Images to vectors: POST /api/v1/embed, the API of OpenAI under /v1, and that of text-embeddings-inference (TEI).

`huggingface_hub.InferenceClient(URL).feature_extraction(image_as_base64)` works with the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, cast

import numpy as np
from anyio import to_thread
from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

import nnclr_hub
from nnclr_hub.errors import ImageError, InvalidRequest, NotReady, UnknownModel
from nnclr_hub.hub.registry import MODELS
from nnclr_hub.workbench.payload import encode_vector

from ..access import READ
from ..answers import BYTES, JSON, NPY, NUMBER_BYTES, DType, PartsResponse, array_response, encoded, wanted
from ..engine import Engine
from ..models import Engines
from ..problems import UNREADABLE, InvalidInput, outcomes
from ..request_bodies import (
    FORM,
    UploadedImage,
    check_count,
    decode_each,
    decode_text,
    fetch_each,
    in_thread_if_large,
    media_type,
    read_form,
    read_json,
    unsupported,
)
from .router import DEFAULT, Here, Parts, Router, name_of, served_names, served_source
from .schemas import FIRST_WRONG, ImageText, Integer, ItemError, Strict, binary, form_body

LISTED = 1024  # images of a request; the clients of frameworks send lists of 100 to 1000


class EmbedRequest(Strict):
    images: Annotated[list[ImageText], FIRST_WRONG] = Field(min_length=1)
    model: str | None = Field(None, description="an id from GET /v1/models; null: the default model")


class EmbedEntry(BaseModel):
    """An embedding or an error."""

    index: int
    name: str | None = None
    embedding: list[float] | str | None = None
    error: ItemError | None = None


class EmbedResponse(BaseModel):
    model: str
    dim: int
    data: list[EmbedEntry]


router = Router(prefix="/api/v1", tags=["embed"])
_FORM = {"files": "many", "model": "an id from GET /v1/models; default: the default model"}


@router.on(
    *("POST", "/embed", READ, f"{UNREADABLE} unknown_model model_error"),
    content={NPY: binary("NumPy file of shape (N, D)"), BYTES: binary("N x D little-endian numbers, row by row")},
    response_model=EmbedResponse,
    openapi_extra=form_body(_FORM, ["files"], EmbedRequest, "image/*"),
)
async def embed(
    request: Request,
    dtype: Annotated[DType, Query(description="type of the numbers in a binary response")] = "float32",
    encoding_format: Annotated[
        Literal["float", "base64"], Query(description="encoding of the vectors in JSON")
    ] = "float",
) -> Response:
    """Embed images: 200 if at least one could be read, else 422.

    `Accept` selects JSON, a NumPy file or raw numbers. The binary formats are sent only if every image could be read.
    """
    here: Parts = request.app.state
    images, name = await _read(request, here)
    model = await here.engines.get_async(served_source(here.engines, name))
    results = await model.embed_each_async([image.data for image in images])
    kind = wanted(request, NPY, BYTES)
    entries = outcomes(
        results,
        [{"name": image.name} for image in images],
        lambda vector: {"embedding": vector},
        "images could not be read",
        code="undecodable_image",
        all_needed=kind != JSON,
    )

    def response() -> Response:
        if kind != JSON:
            return array_response(np.stack(cast(list[np.ndarray], results)), kind, dtype)
        for one in entries:
            if "embedding" in one:
                one["embedding"] = _encoded_as(encoding_format, one["embedding"])
        return _with_data(here, {"model": name_of(here.engines, model), "dim": model.embed_dim}, entries)

    return await in_thread_if_large(len(results) * model.embed_dim * NUMBER_BYTES, response)


async def _read(request: Request, here: Parts) -> tuple[list[UploadedImage], str | None]:
    """Return the images, and the model that the request names."""
    kind, limit = media_type(request), here.settings.max_images
    if kind == FORM:
        form = await read_form(request, texts=("model",))
        return form.images("files", limit), form.texts.get("model")
    if kind == JSON:
        body = await read_json(request, EmbedRequest)
        return await decode_each(body.images, "images", limit, here.fetcher), body.model
    if kind.startswith("image/"):
        check_count(1, limit)
        return [UploadedImage(await request.body())], None
    raise unsupported(request, FORM, JSON, "image/*")


def _with_data(here: Parts, head: dict[str, Any], entries: Iterable[dict[str, Any]]) -> Response:
    return PartsResponse([encoded(head)[:-1], b',"data":', *here.answers.open(0).list(entries), b"}"])


def _encoded_as(encoding: str, vector: np.ndarray) -> Any:
    return encode_vector(vector) if encoding == "base64" else vector


# ---- /v1: the embeddings and models API of OpenAI, for images


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
            if not isinstance(text, str):
                reason = 'must be a data URI or base64 of an image, or {"image": ...} with one.'
                if type(text) in (int, list):
                    reason = (
                        "holds token numbers, and the model embeds images; send each image as text (in LangChain, set "
                        "check_embedding_ctx_length=False)."
                    )
                raise InvalidInput(f"input[{index}]", InvalidRequest(reason))
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


openai = Router(prefix="/v1", tags=["openai"])
_WITH_MODEL = "unknown_model model_error"


@openai.on(
    *("POST", "/embeddings", READ, f"{_WITH_MODEL} undecodable_image"), openai=True, response_model=EmbeddingsResponse
)
async def embeddings(request: Request, body: EmbeddingsRequest, here: Here) -> Response:
    """Embed images. A single unreadable image fails the request; the error names its index."""
    inputs = body.texts()
    model = await _served(here.engines, body.model)
    vectors = await _embed_listed(request, model, inputs, "input", body.dimensions)

    def response() -> Response:
        vectors_as = (_encoded_as(body.encoding_format, one) for one in vectors)
        entries = ({"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(vectors_as))
        usage = {"prompt_tokens": len(inputs), "total_tokens": len(inputs)}
        return _with_data(here, {"object": "list", "model": name_of(here.engines, model), "usage": usage}, entries)

    return await in_thread_if_large(len(vectors) * model.embed_dim * NUMBER_BYTES, response)


async def _embed_listed(
    request: Request, model: Engine, texts: list[str], field: str, dimensions: int | None
) -> list[np.ndarray]:
    """Return the vector of each image, (D,) float32. A single unreadable image fails the request.

    Args:
        texts: data URIs, base64 or web addresses.
        field: field of the body, for errors.
        dimensions: what the client expects; None: anything.

    Raises:
        InvalidInput: the list is empty, an image cannot be read, or the vectors have another length.
        RequestTooLarge: more than `LISTED` images.
    """
    here: Parts = request.app.state
    if not texts:
        reason = InvalidRequest("the list is empty; send an image as a data URI or base64, or a list of them.")
        raise InvalidInput(field, reason)
    check_count(len(texts), max(here.settings.max_images, LISTED))
    if dimensions is not None and dimensions != model.embed_dim:
        reason = InvalidRequest(f"must be {model.embed_dim}, the length of the model's vectors, got {dimensions}.")
        raise InvalidInput("dimensions", reason)
    fetched = await fetch_each(texts, here.fetcher)

    def decode(index: int, text: str) -> bytes:
        try:
            return decode_text(text, "the image", fetched)
        except InvalidRequest as error:
            raise InvalidInput(f"{field}[{index}]", error) from error

    size = sum(map(len, texts))
    images = await in_thread_if_large(size, lambda: [decode(index, text) for index, text in enumerate(texts)])
    vectors: list[np.ndarray] = []
    for index, result in enumerate(await model.embed_each_async(images)):
        if isinstance(result, ImageError):
            raise InvalidInput(f"{field}[{index}]", result)
        vectors.append(result)
    return vectors


@openai.on("GET", "/models", READ, openai=True)
async def models(here: Here) -> ModelsResponse:
    """List the models that requests may name, the default first."""
    named = served_names(here.engines).items()
    return ModelsResponse(data=[_card(name, source, here.engines.loaded(source)) for name, source in named])


@openai.on("GET", "/models/{name:path}", READ, _WITH_MODEL, openai=True)
async def model(name: str, here: Here) -> ModelCard:
    """Describe one model, and load it if needed."""
    found = await _served(here.engines, name)
    return _card(name if name == DEFAULT else name_of(here.engines, found), found.name, found)


async def _served(engines: Engines, name: str) -> Engine:
    try:
        return await engines.get_async(served_source(engines, name))
    except UnknownModel as error:
        raise InvalidInput("model", error) from error


def _card(name: str, source: str, model: Engine | None) -> ModelCard:
    """Return the details of a model; if it is not loaded, those in the registry."""
    known = MODELS.get(source)
    card = ModelCard(id=name, license=known.license if known else None, dim=known.embed_dim if known else None)
    if model is not None:
        pretrained = {} if model.config is None else model.config.pretrained_cfg
        card.loaded, card.dim, card.fingerprint = True, model.embed_dim, model.fingerprint
        card.license = card.license or pretrained.get("license")
        card.preprocessing = None if model.own_transform else model.preprocessing.steps
    return card


# ---- /embed, /info, /health and POST /: the API of TEI

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


tei = Router(tags=["tei"])


@tei.on("POST", "/", READ, include_in_schema=False)  # GET / leads people to the page
@tei.on("POST", "/embed", READ, "undecodable_image model_error", response_model=list[list[float]], name="embed")
async def embed_tei(request: Request, body: TEIRequest, here: Here) -> Response:
    """Embed images with the default model. A single unreadable image fails the request; the error names its index."""
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    model = await here.engines.get_async()
    vectors = await _embed_listed(request, model, texts, "inputs", body.dimensions)
    size = len(vectors) * model.embed_dim * NUMBER_BYTES
    return await in_thread_if_large(size, lambda: PartsResponse(here.answers.open(0).list(vectors)))


@tei.on("GET", "/info", READ, "model_error")
async def info(here: Here) -> TEIInfo:
    """Describe the default model and the limits."""
    model = await here.engines.get_async()
    return TEIInfo(
        model_id=name_of(here.engines, model),
        model_sha=model.fingerprint,
        model_dtype="float32",
        model_type=TEIModelType(embedding={"pooling": "mean"}),
        max_concurrent_requests=here.settings.connections,
        max_client_batch_size=LISTED,
        max_batch_requests=here.settings.max_batch,
        version=nnclr_hub.__version__,
    )


@tei.on("GET", "/health", None, response_class=Response)
async def health(here: Here) -> Response:
    """Answer 200 without a body if the server is ready, and 503 otherwise; /readyz has the reason."""
    found = await to_thread.run_sync(here.readiness.report, limiter=here.health_threads)
    if found.status != "ready":
        raise NotReady("The server is not ready; GET /readyz for the reason.")
    return Response()
