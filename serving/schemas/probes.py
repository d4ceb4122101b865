"""The bodies of requests and responses about probes."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, FiniteFloat, StrictInt, StrictStr, model_validator

from nnclr_hub.store.checks import MAX_LIMIT
from nnclr_hub.workbench.privacy import public_name
from nnclr_hub.workbench.probes import KeptProbe

from .words import ItemError, MetadataKey, Name, Picture, Strict, Where

Label = StrictInt | StrictStr
MOST_ITEMS = 100_000
MOST_TOP = 100
TOP = 5


class ProbeItem(Strict):
    """A labeled vector or image: exactly one of the two."""

    label: Label | list[Label]
    vector: list[FiniteFloat] | str | None = Field(None, description="numbers, or base64 of little-endian float32")
    image: Picture | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.vector is None) == (self.image is None):
            raise ValueError("an item has exactly one of vector and image")
        return self


class ProbeRequest(Strict):
    """A probe to fit: on a collection and a field of its metadata, or on items."""

    name: Name
    collection: Name | None = None
    field: MetadataKey | None = Field(None, description="of the items' metadata: a label each, or a list of them")
    where: Where | None = Field(None, description="fit only on items that pass")
    model: str | None = Field(None, description="what the items' vectors are of; default for images: the server's")
    items: Annotated[list[ProbeItem], Field(min_length=2, max_length=MOST_ITEMS)] | None = None
    l2: float | None = Field(None, ge=0, allow_inf_nan=False, description="penalty; null: chosen on held-out rows")
    balanced: bool = Field(False, description="rare classes count as much as common ones")
    threshold: float | None = Field(None, ge=0, le=1, description="least probability; below it none of the classes")
    replace: bool = Field(False, description="take the place of a probe of the same name")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.collection is None) == (self.items is None) or (self.collection is None) != (self.field is None):
            raise ValueError("give either collection and field, or items")
        if self.collection is None and self.where is not None:
            raise ValueError("where goes with a collection")
        if self.collection is not None and self.model is not None:
            raise ValueError("a collection has its own model: leave model out")
        return self


class ProbeClass(Strict):
    """How one class does on held-out rows."""

    label: Label
    rows: int = Field(description="fitted on")
    held_out: int = Field(description="scored")
    score: float | None = Field(description="accuracy, of several labels a row average precision; null: none held out")


class FewShot(Strict):
    """How far a few labels go, on the held-out rows."""

    labels: int = Field(description="a class; classes with fewer gave all of theirs")
    top1: list[float] = Field(description="accuracy, of several draws of the labels")


class ProbeResponse(Strict):
    """A probe, and how one like it, fitted on four fifths of the rows, does on the others."""

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
    rows: int = Field(description="fitted on")
    left_out: dict[str, int] = Field(description="items that were not, by reason")
    held_out: int = Field(description="rows that the scores are of")
    scores: dict[str, float] = Field(description="top1, mean_per_class, top5; of several labels a row map11")
    none: float = Field(description="share of the held-out rows below the threshold")
    per_class: list[ProbeClass]
    confusion: list[list[int]] | None = Field(
        None, description="held-out rows of each class by what they were taken for; null: there is none"
    )
    few_shot: list[FewShot] = Field([], description="accuracy by labels a class")

    @classmethod
    def of(cls, kept: KeptProbe) -> ProbeResponse:
        """What is told of a probe."""
        own = {name: getattr(kept.probe, name) for name in ("several", "fingerprint", "l2", "threshold")}
        model = public_name(kept.probe.model) if kept.probe.model else ""
        return cls.model_validate(
            {"name": kept.name, "classes": list(kept.probe.classes), "model": model, **own, **kept.about}
        )


class ProbesResponse(Strict):
    """All probes, by name."""

    probes: list[ProbeResponse]


class PredictRequest(Strict):
    """Exactly one of ids with their collection, vectors, and images."""

    collection: Name | None = None
    ids: list[str] | None = Field(None, min_length=1, max_length=MAX_LIMIT)
    vectors: list[list[FiniteFloat] | str] | None = Field(
        None, min_length=1, max_length=MAX_LIMIT, description="numbers, or base64 of little-endian float32"
    )
    images: list[Picture] | None = Field(None, min_length=1)
    fingerprint: str = Field("", description="of the encoder that the vectors come from; empty: not checked")
    top: int = Field(TOP, ge=1, le=MOST_TOP, description="how many classes to give the probabilities of")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.ids, self.vectors, self.images)) != 1:
            raise ValueError("give exactly one of ids, vectors and images")
        if (self.ids is None) != (self.collection is None):
            raise ValueError("ids go with a collection")
        return self


class Probability(Strict):
    """A class and how probable it is."""

    label: Label
    probability: float


class PredictionEntry(Strict):
    """What the probe says of one item, or its error."""

    index: int
    id: str | None = Field(None, description="of a collection's item")
    name: str | None = Field(None, description="of an uploaded file")
    label: Label | None = Field(None, description="the most probable class; null below the threshold")
    labels: list[Label] | None = Field(None, description="of a probe of several labels: all probable enough")
    top: list[Probability] | None = None
    error: ItemError | None = None


class PredictResponse(Strict):
    """One entry an item, in their order."""

    probe: str
    results: list[PredictionEntry]
