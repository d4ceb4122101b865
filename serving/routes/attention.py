"""POST /api/v1/attention: what an encoder looks at, as numbers or as an image."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from nnclr_hub.encoder.attention import AttentionMap
from nnclr_hub.errors import (
    CollectionNotFound,
    DeadlineExceeded,
    FingerprintMismatch,
    ImageError,
    ImageTooLarge,
    ModelError,
    UnknownModel,
    UnsupportedImage,
)
from nnclr_hub.workbench import Workbench

from ..aside import aside
from ..departure import while_present
from ..edge.url_fetcher import Fetcher
from ..keys import READ
from ..looking import check_kind, rendered, settings_of
from ..models import Engines, Model
from ..payloads import decode_text
from ..problems import answers
from ..responses import NPY, PNG, wanted
from ..schemas import AttentionQuestion, AttentionRequest, AttentionResponse
from ..security.access import requires
from ..telemetry import measured
from ..uploads import FORM, JSON, check_count, fetch_each, kind_of, parse, read_form, read_json, unsupported
from .described import binary, form_body
from .state import AppEngines, AppFetcher, AppLooking, AppMetrics, AppSettings, AppWorkbench, name_of, served_source

router = APIRouter(prefix="/api/v1", tags=["attention"])


@dataclass(frozen=True)
class Asked:
    """A question, the image that it is about, and those in which to look."""

    question: AttentionQuestion
    image: bytes
    targets: list[bytes]


@router.post(
    "/attention",
    response_model=AttentionResponse,
    responses={
        **answers(
            ImageError,
            UnsupportedImage,
            ImageTooLarge,
            UnknownModel,
            ModelError,
            CollectionNotFound,
            FingerprintMismatch,
            DeadlineExceeded,
            "unsupported_media_type",
        ),
        200: {
            "content": {
                NPY: binary("(h, w) as numpy's file; of targets (n, h, w), where their maps have one shape"),
                PNG: binary("the map over the image, as large as the original; of one target at most"),
            }
        },
    },
    openapi_extra=form_body(
        {"image": "one", "target": "many", "query": "JSON with the other fields"},
        required=["image"],
        json=AttentionRequest,
    ),
)
@requires(READ)
async def attention(
    request: Request,
    bench: AppWorkbench,
    engines: AppEngines,
    settings: AppSettings,
    metrics: AppMetrics,
    turns: AppLooking,
    fetcher: AppFetcher,
) -> Response:
    """What an encoder looks at in an image: as a whole, from a point or a box, or for that in up to 6 others.

    By `Accept` as JSON, as numpy's file of the raw values, or as a PNG of one map over its image.
    """
    asked = await _read(request, settings.max_images, fetcher)
    question, kind = asked.question, wanted(request, NPY, PNG)
    check_kind(question, kind, len(asked.targets))
    wanting = settings_of(question, settings.attention_side)
    model = await run_in_threadpool(_model, bench, engines, question)
    end = time.monotonic() + settings.deadline_s

    def render(maps: list[AttentionMap]) -> Response:
        with measured(metrics, "render"):
            return rendered(maps, kind, question, name_of(engines, model), len(asked.targets))

    async def answer() -> Response:
        async with turns.taken(settings.deadline_s):
            left = max(end - time.monotonic(), 0.001)
            maps = await model.look_async(wanting, asked.image, asked.targets, deadline_s=left)
            return await run_in_threadpool(render, maps)

    return await while_present(request, answer())


def _model(bench: Workbench, engines: Engines, question: AttentionQuestion) -> Model:
    """The model that is named, or that of a collection.

    Raises:
        FingerprintMismatch: the model is not the collection's.
    """
    if question.collection is None:
        return engines.get(served_source(engines, question.model))
    source = None if question.model is None else served_source(engines, question.model)
    return cast(Model, bench.embedder(source, question.collection))


async def _read(request: Request, limit: int, fetcher: Fetcher | None) -> Asked:
    """The question; in a multipart request the images are files beside it."""
    kind = kind_of(request)
    if kind == JSON:
        body = await read_json(request, AttentionRequest)
        given = [body.image, *body.target]
        check_count(len(given), limit)
        fetched = await fetch_each(given, fetcher)
        names = ["image", *(f"target[{i}]" for i in range(len(body.target)))]

        def decode() -> list[bytes]:
            return [decode_text(text, name, fetched) for text, name in zip(given, names, strict=True)]

        image, *targets = await aside(sum(map(len, given)), decode)
        return Asked(body, image, targets)
    if kind != FORM:
        raise unsupported(request, JSON, FORM)
    form = await read_form(request, files=("image", "target"), texts=("query",))
    pictures = form.pictures("image", 1)
    if any(name == "target" for name, _ in form.files):
        pictures += form.pictures("target", limit - 1)
    text = form.texts.get("query") or "{}"
    question = await aside(len(text), parse, text, AttentionQuestion, ("query",))
    image, *targets = (cast(bytes, picture.data) for picture in pictures)  # a file is never text that is no image
    return Asked(question, image, targets)
