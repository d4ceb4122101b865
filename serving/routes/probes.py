"""/api/v1/probes: fit, list, describe, delete and export probes, and predict with them."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool

from nnclr_hub.errors import (
    CollectionNotFound,
    DeadlineExceeded,
    DiskFull,
    FingerprintMismatch,
    ImageError,
    ImageTooLarge,
    InvalidFilter,
    InvalidRequest,
    ModelError,
    NNCLRHubError,
    ProbeExists,
    ProbeNotFound,
    StoreReadOnly,
    UnknownModel,
    UnsupportedImage,
)
from nnclr_hub.probe.labeling import Labeling
from nnclr_hub.store.checks import check_name
from nnclr_hub.workbench import Workbench
from nnclr_hub.workbench.labels import require_field
from nnclr_hub.workbench.payload import decode_vector
from nnclr_hub.workbench.privacy import public_name, without_paths
from nnclr_hub.workbench.probes import (
    delete_probe,
    get_probe,
    list_probes,
    probe_files,
    probe_in_one_file,
    refuse_taken_probe,
)

from ..disconnect import while_connected
from ..edge.url_fetcher import Fetcher
from ..keys import READ, WRITE
from ..models import Model
from ..problems import answers, problem
from ..request_bodies import (
    FORM,
    JSON,
    UploadedImage,
    check_count,
    decode_each,
    fetch_each,
    media_type,
    parse,
    read_form,
    read_json,
    unsupported,
)
from ..schemas.fields import ItemError
from ..schemas.jobs import SOURCE, JobResponse
from ..schemas.probes import (
    TOP,
    PredictionEntry,
    PredictRequest,
    PredictResponse,
    Probability,
    ProbeRequest,
    ProbeResponse,
    ProbesResponse,
)
from ..security.access import requires
from .body_schemas import form_body, json_body
from .dependencies import AppEngines, AppFetcher, AppSettings, AppWorkbench, served_engine
from .jobs import AppJobs, Mark, accepted, answers_of_job

router = APIRouter(prefix="/api/v1/probes", tags=["probes"])
EXPORTS = {"zip": "application/zip", "safetensors": "application/octet-stream"}
_PREDICT_BODY = form_body(
    {"files": "many", "top": "number of classes whose probabilities to return"}, required=["files"], json=PredictRequest
)


@router.get("", responses=answers())
@requires(READ)
def list_all(bench: AppWorkbench) -> ProbesResponse:
    """List all probes by name."""
    return ProbesResponse(probes=[ProbeResponse.of(kept) for kept in list_probes(bench.store.records)])


async def _to_fit(request: Request, settings: AppSettings) -> ProbeRequest:
    """Read the body; its images count against the limits as those of any request."""
    body = await read_json(request, ProbeRequest)
    check_count(sum(item.image is not None for item in body.items or ()), settings.max_images)
    return body


@router.post(
    "",
    status_code=202,
    responses=answers_of_job(CollectionNotFound, ProbeExists, UnknownModel, ModelError, InvalidFilter),
    openapi_extra=json_body(ProbeRequest),
)
@requires(WRITE)
def fit(
    body: Annotated[ProbeRequest, Depends(_to_fit)],
    response: Response,
    bench: AppWorkbench,
    engines: AppEngines,
    jobs: AppJobs,
    mark: Mark,
) -> JobResponse:
    """Fit a probe in the background; the result of the job has its scores on held-out rows."""
    check_name(body.name, "Probe name")
    if not body.replace:
        refuse_taken_probe(bench.store.records, body.name)
    if body.collection is not None and body.field is not None:
        require_field(bench.collection(body.collection), body.field, body.where)
    has_images = any(item.image is not None for item in body.items or ())
    known = has_images or body.model is not None
    source = served_engine(engines, body.model).name if known else None
    params = {
        **body.model_dump(include={"name", "collection", "field", "where", "model", "replace"}),
        "items": None if body.items is None else len(body.items),
        "options": body.model_dump(include={"l2", "balanced", "threshold"}),
        SOURCE: source,
    }
    items = None if body.items is None else json.dumps([item.model_dump() for item in body.items]).encode()
    return accepted(jobs.submit("probe_fit", params, items, mark=mark), response)


@router.get("/{name}", responses=answers(ProbeNotFound))
@requires(READ)
def describe(name: str, bench: AppWorkbench) -> ProbeResponse:
    """Describe a probe, with its scores on held-out rows."""
    return ProbeResponse.of(get_probe(bench.store.records, name))


@router.delete("/{name}", status_code=204, responses=answers(ProbeNotFound, StoreReadOnly, DiskFull))
@requires(WRITE)
def delete(name: str, bench: AppWorkbench) -> None:
    """Delete a probe."""
    delete_probe(bench.store.records, name)


@router.get(
    "/{name}/export",
    response_class=Response,
    responses={
        200: {
            "description": "A zip of probe.safetensors, probe.json and card.json, or only the first.",
            "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in EXPORTS.values()},
        },
        **answers(ProbeNotFound),
    },
)
@requires(READ)
def export(name: str, bench: AppWorkbench, format: Literal["zip", "safetensors"] = "zip") -> Response:
    """Export a probe as files for `LinearProbe.load` and `nnclr probe predict`."""
    kept = get_probe(bench.store.records, name)
    model = public_name(kept.probe.model) if kept.probe.model else ""
    kept = replace(kept, probe=replace(kept.probe, model=model))
    content = _zipped(probe_files(kept)) if format == "zip" else probe_in_one_file(kept)
    headers = {"Content-Disposition": f'attachment; filename="{name}.{format}"'}
    return Response(content, media_type=EXPORTS[format], headers=headers)


def _zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip; the same files always make the same bytes."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in files.items():
            zipped.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()


@router.post(
    "/{name}/predict",
    response_model=PredictResponse,
    response_model_exclude_none=True,
    responses=answers(
        ProbeNotFound,
        CollectionNotFound,
        FingerprintMismatch,
        ImageError,
        UnsupportedImage,
        ImageTooLarge,
        ModelError,
        DeadlineExceeded,
        "unsupported_media_type",
    ),
    openapi_extra=_PREDICT_BODY,
)
@requires(READ)
async def predict(name: str, request: Request, bench: AppWorkbench, settings: AppSettings, fetcher: AppFetcher) -> Any:
    """Predict the labels of items, vectors or images.

    The response has a prediction or an error for each: 200 if at least one has a prediction, else 422.
    """
    query, images = await _read(request, settings.max_images, fetcher)
    if images:
        results = await _of_images(request, bench, name, images, query.top)
    else:
        results = await run_in_threadpool(_of_others, bench, name, query)
    names: Sequence[dict[str, Any]] = (
        [{"id": id} for id in query.ids or ()] or [{"name": one.name} for one in images] or [{}] * len(results)
    )
    entries = [
        PredictionEntry(index=i, **about, **_entry(result))
        for i, (result, about) in enumerate(zip(results, names, strict=True))
    ]
    broken = [{"index": one.index, **one.error.model_dump()} for one in entries if one.error is not None]
    if len(broken) == len(entries):
        detail = f"None of the {len(entries)} predictions succeeded; first error: {broken[0]['detail']}"
        return problem(request.url.path, 422, str(broken[0]["code"]), detail, items=broken)
    return PredictResponse(probe=name, results=entries)


async def _of_images(
    request: Request, bench: Workbench, name: str, images: list[UploadedImage], top: int
) -> list[Labeling | NNCLRHubError]:
    """Predict the label of each image; no thread waits while they are embedded."""
    model = cast(Model, await run_in_threadpool(bench.embedder_of_probe, name))
    good = [one.data for one in images if isinstance(one.data, bytes)]
    results = await while_connected(request, model.embed_each_async(good))
    vectors = [row for row in results if isinstance(row, np.ndarray)]
    predictions: list[Labeling | NNCLRHubError] = []
    if vectors:
        predictions = await run_in_threadpool(
            bench.predict, name, vectors=np.stack(vectors), fingerprint=model.fingerprint, k=top
        )
    embedded, labeled = iter(results), iter(predictions)
    rows = [one.data if isinstance(one.data, ImageError) else next(embedded) for one in images]
    return [row if isinstance(row, ImageError) else next(labeled) for row in rows]


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
    kind = media_type(request)
    if kind == JSON:
        query = await read_json(request, PredictRequest)
        images = query.images or ()
        check_count(len(images), limit)
        return query, await decode_each(images, "images", await fetch_each(images, fetcher))
    if kind != FORM:
        raise unsupported(request, FORM, JSON)
    form = await read_form(request, texts=("top",))
    uploaded = form.images("files", limit)
    # the other fields are checked as those of a JSON body, with empty texts as images
    top = form.texts.get("top", str(TOP))
    body = json.dumps({"images": [""] * len(uploaded), "top": int(top) if re.fullmatch("[0-9]{1,9}", top) else top})
    return parse(body, PredictRequest, ("body",)), uploaded


def _entry(result: Labeling | NNCLRHubError) -> dict[str, Any]:
    if isinstance(result, NNCLRHubError):
        return {"error": ItemError(code=result.code, detail=without_paths(str(result)))}
    top = [Probability(label=label, probability=value) for label, value in result.top]
    if isinstance(result.label, tuple):
        return {"labels": list(result.label), "top": top}
    return {"label": result.label, "top": top}
