"""/v1: what OpenAI's clients speak, for pictures."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from nnclr_hub.errors import ImageError, InvalidRequest, RequestTooLarge

from ..payloads import encode_vector, read_pictures
from ..schemas import EmbeddingsRequest, ModelCard
from .state import AppEngines, AppFetcher, AppSettings, served_engine

router = APIRouter(prefix="/v1", tags=["openai"])


@router.post("/embeddings")
async def embeddings(
    body: EmbeddingsRequest, engines: AppEngines, settings: AppSettings, fetcher: AppFetcher
) -> dict[str, Any]:
    """Vectors of pictures. One bad picture fails the request, which names its index."""
    inputs = [body.input] if isinstance(body.input, str) else body.input
    if not inputs:
        raise InvalidRequest("input is empty: give a picture as a data URI or base64, or a list of them.")
    if len(inputs) > settings.max_images:
        raise RequestTooLarge(
            f"{len(inputs)} pictures are too many for one request: send at most {settings.max_images}."
        )
    engine = await run_in_threadpool(served_engine, engines, body.model)
    if body.dimensions is not None and body.dimensions != engine.embed_dim:
        raise InvalidRequest(f"dimensions={body.dimensions} is not possible: {body.model} has {engine.embed_dim}.")
    pictures = await read_pictures({f"input[{i}]": text for i, text in enumerate(inputs)}, fetcher)
    results = await engine.embed_each_async(pictures)
    data = []
    for index, result in enumerate(results):
        if isinstance(result, ImageError):
            raise InvalidRequest(f"input[{index}]: {result}") from result
        value = encode_vector(result) if body.encoding_format == "base64" else result.tolist()
        data.append({"object": "embedding", "index": index, "embedding": value})
    count = len(inputs)  # there are no tokens: pictures are counted
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": body.model, "usage": usage}


@router.get("/models")
async def models(engines: AppEngines) -> dict[str, Any]:
    """The models that requests may name."""
    return {"object": "list", "data": [ModelCard(id=name).model_dump() for name in engines.served()]}


@router.get("/models/{name:path}")
async def model(name: str, engines: AppEngines) -> dict[str, Any]:
    """One model, loaded if it was not, with its vector's length."""
    engine = await run_in_threadpool(served_engine, engines, name)
    return {**ModelCard(id=name).model_dump(), "dim": engine.embed_dim, "fingerprint": engine.fingerprint}
