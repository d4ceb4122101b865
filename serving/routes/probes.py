"""/api/v1/probes: list, describe, delete and export probes, which jobs fit, and predict labels with them."""

from __future__ import annotations

import io
import json
import re
import zipfile
from dataclasses import replace
from typing import Any, Literal, Self, cast

import numpy as np
from anyio import to_thread
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ConfigDict, Field, FiniteFloat, model_validator

from nnclr_hub.errors import ImageError, InvalidRequest, NNCLRHubError
from nnclr_hub.probe.metrics import Labeling
from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.workbench.payload import decode_vector
from nnclr_hub.workbench.privacy import public_name
from nnclr_hub.workbench.probes import (
    KeptProbe,
    delete_probe,
    get_probe,
    list_probes,
    probe_files,
    probe_in_one_file,
)

from ..access import READ, WRITE
from ..answers import PartsResponse, encoded
from ..engine import Engine
from ..problems import UNREADABLE, outcomes
from ..request_bodies import UploadedImage, decode_each, is_form, parse, read_form, read_json
from .jobs import Label
from .router import BYTES, FAILED_WRITE, Here, Parts, Router
from .schemas import CollectionName, ImageText, Integer, ItemError, Strict, binary, form_body, one_of

router = Router(prefix="/api/v1/probes", tags=["probes"])
EXPORTS = {"zip": "application/zip", "safetensors": BYTES}
MOST_TOP = 100
TOP = 5


# ---- manage probes


class ProbeClass(Strict):
    """The score of one class on held-out rows."""

    label: Label
    rows: int = Field(description="number of rows for fitting")
    held_out: int = Field(description="number of rows for scoring")
    score: float | None = Field(
        description="accuracy, or average precision for a multi-label probe; null: no row was held out"
    )


class FewShot(Strict):
    """The accuracy with few labels, on the held-out rows."""

    labels: int = Field(description="labels per class; classes with fewer use all of theirs")
    top1: list[float] = Field(description="accuracy, for several random samples of the labels")


class ProbeResponse(Strict):
    """A probe, with the scores of a probe that was fitted on 80% of the rows and scored on the rest."""

    name: str
    classes: list[Label]
    several: bool = Field(description="whether a row may have more than one label")
    dim: int
    model: str
    fingerprint: str
    l2: float
    threshold: float
    created: float = Field(description="seconds since 1970")
    source: dict[str, Any]
    rows: int = Field(description="number of rows for fitting")
    left_out: dict[str, int] = Field(description="number of items that were skipped, by reason")
    held_out: int = Field(description="number of rows for scoring")
    scores: dict[str, float] = Field(description="top1, mean_per_class and top5; map11 for a multi-label probe")
    none: float = Field(description="share of held-out rows below the threshold")
    per_class: list[ProbeClass]
    confusion: list[list[int]] | None = Field(
        None, description="confusion matrix: held-out rows by class and predicted class; null: not available"
    )
    few_shot: list[FewShot] = Field([], description="accuracy by number of labels per class")

    @classmethod
    def of(cls, kept: KeptProbe) -> ProbeResponse:
        """Make the response of a stored probe."""
        own = {name: getattr(kept.probe, name) for name in ("several", "fingerprint", "l2", "threshold")}
        model = public_name(kept.probe.model) if kept.probe.model else ""
        return cls.model_validate(
            {"name": kept.name, "classes": list(kept.probe.classes), "model": model, **own, **kept.about}
        )


class ProbesResponse(Strict):
    """All probes, by name."""

    probes: list[ProbeResponse]


@router.on("GET", "", READ, "answer_too_large", response_model=ProbesResponse)
def list_all(here: Here) -> Response:
    """List all probes by name."""
    answer, probes = here.answers.open(0), list_probes(here.workbench.store.records)
    return PartsResponse([b'{"probes":', *answer.list(ProbeResponse.of(kept).model_dump() for kept in probes), b"}"])


@router.on("GET", "/{name}", READ, "probe_not_found")
def describe(name: str, here: Here) -> ProbeResponse:
    """Describe a probe, with its scores on held-out rows."""
    return ProbeResponse.of(get_probe(here.workbench.store.records, name))


@router.on("DELETE", "/{name}", WRITE, f"probe_not_found {FAILED_WRITE}", status_code=204)
def delete(name: str, here: Here) -> None:
    """Delete a probe."""
    delete_probe(here.workbench.store.records, name)


_FILES = binary("A zip of probe.safetensors, probe.json and card.json, or only the first.")


@router.on("GET", "/{name}/export", READ, "probe_not_found", content=dict.fromkeys(EXPORTS.values(), _FILES))
def export(name: str, here: Here, format: Literal["zip", "safetensors"] = "zip") -> Response:
    """Export a probe as files for `LinearProbe.load` and `nnclr probe predict`."""
    kept = get_probe(here.workbench.store.records, name)
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


# ---- predictions


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


_FORM = {"files": "many", "top": "number of classes whose probabilities to return"}
_ERRORS = f"probe_not_found answer_too_large collection_not_found fingerprint_mismatch {UNREADABLE} model_error"


@router.on(
    *("POST", "/{name}/predict", READ, _ERRORS),
    response_model=PredictResponse,
    openapi_extra=form_body(_FORM, ["files"], PredictRequest),
)
async def predict(name: str, request: Request, here: Here) -> Response:
    """Predict the labels of items, vectors or images.

    The response has a prediction or an error for each: 200 if at least one has a prediction, else 422.
    """
    query, images = await _read(request, here)
    embedded: list[np.ndarray | ImageError] = []
    if images:
        model = cast(Engine, await run_in_threadpool(here.workbench.embedder_of_probe, name))
        embedded = await model.embed_each_async([one.data for one in images])

    def labeled() -> Response:
        answer = here.answers.open()
        results = _of_images(here, name, embedded, query.top) if images else _of_others(here, name, query)
        about: list[dict[str, Any]] = [{"id": id} for id in query.ids or ()]
        about = about or [{"name": one.name} if one.name else {} for one in images] or [{}] * len(results)
        entries = outcomes(results, about, _prediction, "predictions failed")
        return PartsResponse([b'{"probe":', encoded(name), b',"results":', *answer.list(entries), b"}"])

    return await to_thread.run_sync(labeled, limiter=here.search_threads)


async def _read(request: Request, here: Parts) -> tuple[PredictRequest, list[UploadedImage]]:
    """Read the query and its images."""
    limit = here.settings.max_images
    if not is_form(request):
        query = await read_json(request, PredictRequest)
        return query, await decode_each(query.images or (), "images", limit, here.fetcher)
    form = await read_form(request, texts=("top",))
    uploaded = form.images("files", limit)
    # the other fields are checked as those of a JSON body, with empty texts as images
    top = form.texts.get("top", str(TOP))
    body = json.dumps({"images": [""] * len(uploaded), "top": int(top) if re.fullmatch("[0-9]{1,9}", top) else top})
    return parse(body, PredictRequest, ("body",)), uploaded


def _of_images(
    here: Parts, name: str, vectors: list[np.ndarray | ImageError], top: int
) -> list[Labeling | NNCLRHubError]:
    """Predict the label of each image that could be embedded."""
    good = [row for row in vectors if isinstance(row, np.ndarray)]
    labeled = iter(here.workbench.predict(name, vectors=np.stack(good), k=top) if good else ())
    return [row if isinstance(row, ImageError) else next(labeled) for row in vectors]


def _of_others(here: Parts, name: str, query: PredictRequest) -> list[Labeling | NNCLRHubError]:
    """Predict the label of each vector or item."""
    vectors = None
    if query.vectors is not None:
        rows = [decode_vector(row, f"vectors[{i}]") for i, row in enumerate(query.vectors)]
        if len({len(row) for row in rows}) > 1:
            raise InvalidRequest("The vectors have different lengths; send vectors of one encoder.")
        vectors = np.stack(rows)
    options = {"collection": query.collection, "ids": query.ids, "fingerprint": query.fingerprint, "k": query.top}
    return here.workbench.predict(name, vectors=vectors, **options)


def _prediction(result: Labeling) -> dict[str, Any]:
    """Return the fields of a `PredictionEntry` that are not null."""
    top = [{"label": label, "probability": value} for label, value in result.top]
    if result.label is None:
        return {"top": top}
    return {"labels" if isinstance(result.label, tuple) else "label": result.label, "top": top}
