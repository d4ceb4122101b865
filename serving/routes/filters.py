"""`where` in the query of a GET: a filter on metadata, as JSON."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import TypeAdapter, ValidationError

from nnclr_hub.errors import InvalidFilter

from ..privacy import public_where

_WHERE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
WhereText = Annotated[
    str | None,
    Query(description='a filter on metadata as JSON, like {"must": [{"key": "label", "match": "cat"}]}'),
]


def read_where(text: str | None) -> dict[str, Any] | None:
    """The filter; None: no filter.

    Raises:
        InvalidFilter: it is no JSON object, or names a key that is not to be asked for.
    """
    if text is None:
        return None
    try:
        where = _WHERE.validate_json(text)
        public_where(where)
    except ValidationError as error:
        raise InvalidFilter("where is no JSON object.") from error
    except ValueError as error:
        raise InvalidFilter(f"where: {error}.") from error
    return where
