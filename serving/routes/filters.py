"""The query parameter `where`: a filter on metadata, as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import TypeAdapter, ValidationError

from nnclr_hub.errors import InvalidFilter
from nnclr_hub.workbench.privacy import public_where

_WHERE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
WhereText = Annotated[
    str | None,
    Query(description='filter on metadata as JSON, such as {"must": [{"key": "label", "match": "cat"}]}'),
]


def read_where(text: str | None) -> dict[str, Any] | None:
    """Parse the filter; None: no filter.

    Raises:
        InvalidFilter: the text is not a JSON object, or it names a private key.
    """
    if text is None:
        return None
    try:
        where = _WHERE.validate_json(text)
        public_where(where)
    except ValidationError as error:
        raise InvalidFilter("where must be a JSON object.") from error
    except ValueError as error:
        raise InvalidFilter(f"where: {error}.") from error
    return where
