"""Descriptions of bodies that a route reads by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

FILE = {"type": "string", "format": "binary"}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """A body that comes as JSON; the schema of the model has to be among the components."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def form_body(fields: Mapping[str, str], required: Sequence[str], json: type[BaseModel]) -> dict[str, Any]:
    """A body that comes as a form or as JSON.

    Args:
        fields: of the form, by name: "many" files, "one" file, or the description of a text.
        required: those that must be there.
        json: the other form; its schema has to be among the components.
    """

    def schema(name: str, what: str) -> dict[str, Any]:
        if what == "one":
            return FILE
        if what == "many":  # of none there is no part, which is as good as no field
            return {"type": "array", "items": FILE, **({"minItems": 1} if name in required else {})}
        return {"type": "string", "description": what}

    properties = {name: schema(name, what) for name, what in fields.items()}
    form = {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}
    reference = {"$ref": f"#/components/schemas/{json.__name__}"}
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": reference}}
    return {"requestBody": {"required": True, "content": content}}


def binary(description: str) -> dict[str, Any]:
    """A body of bytes."""
    return {"schema": {**FILE, "description": description}}
