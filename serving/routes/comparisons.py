"""POST /api/v1/collections/{name}/comparisons: which of the encoders suits a collection."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from nnclr_hub.encoder.hand_crafted import FLOORS
from nnclr_hub.errors import CollectionNotFound, InvalidFilter, UnknownModel
from nnclr_hub.store.where import check_key

from ..keys import WRITE
from ..request_bodies import json_of
from ..security.access import requires
from .bodies import FIRST_WRONG, MetadataKey, Strict
from .dependencies import AppEngines, AppWorkbench, served_names, served_source
from .jobs import JobResponse, Submit, answers_of_job

MAX_COMPARED = 8  # encoders


class ComparisonRequest(Strict):
    """The encoders to compare, and the labels to compare them by."""

    models: Annotated[list[str], FIRST_WRONG] | None = Field(
        None,
        max_length=MAX_COMPARED,
        description=f"models that the server serves, or the hand-crafted features {', '.join(FLOORS)}; null: all "
        "models of the server, and pixels. The others are compared with the first one",
    )
    field: MetadataKey = Field("label", description="metadata key of the label of an item")


router = APIRouter(prefix="/api/v1/collections/{name}", tags=["inspections"])


@router.post(
    "/comparisons",
    status_code=202,
    responses=answers_of_job(CollectionNotFound, UnknownModel, InvalidFilter),
)
@requires(WRITE)
def compare_encoders(
    name: str,
    body: Annotated[ComparisonRequest, json_of(ComparisonRequest)],
    bench: AppWorkbench,
    engines: AppEngines,
    submit: Submit,
) -> JobResponse:
    """Compare encoders on the thumbnails of a collection: cross-validated accuracy, and scores without labels.

    At most 1000 items are compared, if possible with labels. The job's result has the scores with 95% intervals, and a
    conclusion.
    """
    bench.collection(name)
    check_key(body.field)
    names = {source: public for public, source in served_names(engines).items()}
    compared: dict[str, str | None] = {}  # the source of each, by its public name; None: hand-crafted
    for one in body.models or [*list(names.values())[: MAX_COMPARED - 1], "pixels"]:
        source = None if one in FLOORS else served_source(engines, one)
        compared[one if source is None else names[source]] = source
    params = {"collection": name, "models": list(compared), "field": body.field}
    return submit("comparison", params, source=list(compared.values()))
