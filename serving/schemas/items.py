"""The bodies of items."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, RootModel

from .fields import FIRST_WRONG, ImageText, ItemError, Metadata, Name, Strict, Vector


class ItemRequest(Strict):
    id: Name
    vector: Vector
    metadata: Metadata = Field(default_factory=dict)


class ItemsRequest(RootModel[Annotated[list[ItemRequest], FIRST_WRONG]]):
    """Items by their vectors."""


class StoredResponse(BaseModel):
    stored: int
    seq: int = Field(description="sequence number of the change")


class ItemResponse(BaseModel):
    id: str
    metadata: Metadata
    vector: list[float] | None = None


class ItemsResponse(BaseModel):
    items: list[ItemResponse]
    cursor: str | None = Field(description="cursor of the next page; null on the last page")


class ItemNote(Strict):
    """The id and metadata of one file of a multipart upload."""

    id: Name | None = Field(default=None, description="null: derived from the bytes of the image")
    metadata: Metadata = Field(default_factory=dict)
    thumbnail: bool = Field(default=True, description="store a thumbnail of the image")


class NewItem(ItemNote):
    image: ImageText


class UploadRequest(Strict):
    items: Annotated[list[NewItem], FIRST_WRONG] = Field(min_length=1)


class UploadEntry(BaseModel):
    """The id under which the image is stored, or an error."""

    index: int
    name: str | None = None
    id: str | None = None
    error: ItemError | None = None


class UploadResponse(BaseModel):
    results: list[UploadEntry]
