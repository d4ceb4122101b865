"""/api/v1/probes: fit, list, describe, delete and export probes."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Depends, Request, Response
from pydantic import ConfigDict, Field, FiniteFloat, StrictInt, StrictStr, model_validator

from nnclr_hub.errors import (
    CollectionNotFound,
    DiskFull,
    InvalidFilter,
    ModelError,
    ProbeExists,
    ProbeNotFound,
    StoreReadOnly,
    UnknownModel,
)
from nnclr_hub.store.checks import check_name
from nnclr_hub.workbench.labels import require_field
from nnclr_hub.workbench.privacy import public_name
from nnclr_hub.workbench.probes import (
    KeptProbe,
    delete_probe,
    get_probe,
    list_probes,
    probe_files,
    probe_in_one_file,
    refuse_taken_probe,
)

from ..keys import READ, WRITE
from ..problems import answers
from ..request_bodies import check_count, read_json
from ..security.access import requires
from .bodies import CollectionName, ImageText, MetadataKey, Name, Strict, Where, json_body, one_of
from .dependencies import AppEngines, AppSettings, AppWorkbench, served_engine
from .jobs import JobResponse, Submit, answers_of_job

router = APIRouter(prefix="/api/v1/probes", tags=["probes"])
EXPORTS = {"zip": "application/zip", "safetensors": "application/octet-stream"}
Label = StrictInt | StrictStr
MOST_ITEMS = 100_000


class ProbeItem(Strict):
    """A label with exactly one of vector and image."""

    model_config = ConfigDict(json_schema_extra=one_of("vector", "image"))

    label: Label | list[Label]
    vector: list[FiniteFloat] | str | None = Field(None, description="numbers, or base64 of little-endian float32")
    image: ImageText | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.vector is None) == (self.image is None):
            raise ValueError("an item takes exactly one of vector and image")
        return self


class ProbeRequest(Strict):
    """A probe to fit on a metadata field of a collection, or on labeled items."""

    model_config = ConfigDict(json_schema_extra=one_of("collection field", "items"))

    name: Name
    collection: CollectionName | None = None
    field: MetadataKey | None = Field(
        None, description="metadata key that holds the label of an item, or a list of labels"
    )
    where: Where | None = Field(None, description="fit only on items that match the filter")
    model: str | None = Field(None, description="model of the items' vectors; for images, null means the default model")
    items: Annotated[list[ProbeItem], Field(min_length=2, max_length=MOST_ITEMS)] | None = None
    l2: float | None = Field(None, ge=0, allow_inf_nan=False, description="L2 penalty; null: chosen on held-out rows")
    balanced: bool = Field(False, description="weight classes equally")
    threshold: float | None = Field(None, ge=0, le=1, description="lowest probability; below it, no class is predicted")
    reject_far: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="predict none for vectors far from all labeled ones; the share of good ones to lose",
    )
    replace: bool = Field(False, description="replace a probe of the same name")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.collection is None) == (self.items is None) or (self.collection is None) != (self.field is None):
            raise ValueError("give either collection and field, or items")
        if self.collection is None and self.where is not None:
            raise ValueError("where needs a collection")
        if self.collection is not None and self.model is not None:
            raise ValueError("a collection has its own model; remove model")
        return self


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
    body: Annotated[ProbeRequest, Depends(_to_fit)], bench: AppWorkbench, engines: AppEngines, submit: Submit
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
        "options": body.model_dump(include={"l2", "balanced", "threshold", "reject_far"}),
    }
    examples = None if body.items is None else [item.model_dump() for item in body.items]
    return submit("probe_fit", params, source=source, examples=examples)


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
