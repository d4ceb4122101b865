"""The bodies of items."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, RootModel

from .words import FIRST_WRONG, ItemError, Metadata, Name, Picture, Strict, Vector


class ItemRequest(Strict):
    id: Name
    vector: Vector
    metadata: Metadata = Field(default_factory=dict)


class ItemsRequest(RootModel[Annotated[list[ItemRequest], FIRST_WRONG]]):
    """Items by their vectors."""


class StoredResponse(BaseModel):
    stored: int
    seq: int = Field(description="number of the change")


class ItemResponse(BaseModel):
    id: str
    metadata: Metadata
    vector: list[float] | None = None


class ItemsResponse(BaseModel):
    items: list[ItemResponse]
    cursor: str | None = Field(description="of the next page; null at the end")


class ItemNote(Strict):
    """What a multipart upload says about one of its files."""

    id: Name | None = Field(default=None, description="null: made of the image's bytes")
    metadata: Metadata = Field(default_factory=dict)


class NewItem(ItemNote):
    image: Picture


class UploadRequest(Strict):
    items: Annotated[list[NewItem], FIRST_WRONG] = Field(min_length=1)


class UploadEntry(BaseModel):
    """Either the id under which the image is stored, or an error."""

    index: int
    name: str | None = None
    id: str | None = None
    error: ItemError | None = None


class UploadResponse(BaseModel):
    results: list[UploadEntry]
