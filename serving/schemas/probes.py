"""The bodies of requests and responses about probes."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, FiniteFloat, StrictInt, StrictStr, model_validator

from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.workbench.privacy import public_name
from nnclr_hub.workbench.probes import KeptProbe

from .fields import ImageText, ItemError, MetadataKey, Name, Strict, Where

Label = StrictInt | StrictStr
MOST_ITEMS = 100_000
MOST_TOP = 100
TOP = 5


class ProbeItem(Strict):
    """A label with exactly one of vector and image."""

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

    name: Name
    collection: Name | None = None
    field: MetadataKey | None = Field(
        None, description="metadata key that holds the label of an item, or a list of labels"
    )
    where: Where | None = Field(None, description="fit only on items that match the filter")
    model: str | None = Field(None, description="model of the items' vectors; for images, null means the default model")
    items: Annotated[list[ProbeItem], Field(min_length=2, max_length=MOST_ITEMS)] | None = None
    l2: float | None = Field(None, ge=0, allow_inf_nan=False, description="L2 penalty; null: chosen on held-out rows")
    balanced: bool = Field(False, description="weight classes equally")
    threshold: float | None = Field(None, ge=0, le=1, description="lowest probability; below it, no class is predicted")
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


class PredictRequest(Strict):
    """Exactly one of vectors, images, and ids with their collection."""

    collection: Name | None = None
    ids: list[str] | None = Field(None, min_length=1, max_length=MAX_LIMIT)
    vectors: list[list[FiniteFloat] | str] | None = Field(
        None, min_length=1, max_length=MAX_LIMIT, description="numbers, or base64 of little-endian float32"
    )
    images: list[ImageText] | None = Field(None, min_length=1)
    fingerprint: str = Field("", description="fingerprint of the encoder of the vectors; empty: not checked")
    top: int = Field(TOP, ge=1, le=MOST_TOP, description="number of classes whose probabilities to return")

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
