"""The bodies of collections and their aliases."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from nnclr_hub.store.index_kinds import IndexName

from .fields import FIRST_WRONG, Name, Strict


class CollectionRequest(Strict):
    """A new collection. Without dim, it is bound to the vectors of `model`."""

    model: str | None = None
    dim: int | None = None
    metric: Literal["cosine", "dot", "l2"] = "cosine"
    indexed: Annotated[list[str], FIRST_WRONG] = Field(
        default=["label"], description="metadata keys to index for fast filters"
    )
    index: IndexName = "auto"
    precision: Literal["f32", "f16"] = "f32"


class CollectionResponse(BaseModel):
    name: str
    dim: int
    metric: str
    model: str
    fingerprint: str
    indexed: list[str]
    index: str
    precision: str
    count: int
    durable_seq: int
    indexed_seq: int
    state: str
    index_in_use: str


class CollectionsResponse(BaseModel):
    collections: list[CollectionResponse]


class VerifyResponse(BaseModel):
    """The result of a verification; ok if the lists are empty and the recall is at least 0.9."""

    ok: bool
    items: int
    damaged: list[str]
    disagreements: list[str]
    missing: list[str]
    recall: float


class CountResponse(BaseModel):
    count: int


class AliasRequest(Strict):
    collection: Name


class AliasResponse(BaseModel):
    alias: str
    collection: str


class AliasesResponse(BaseModel):
    aliases: list[AliasResponse]
