"""OpenAPI descriptions of bodies that a route reads itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

FILE = {"type": "string", "format": "binary"}
MODELS: list[type[BaseModel]] = []  # that describe a body; `openapi.document` adds them to the components


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _reference(model)}}}}


def form_body(fields: Mapping[str, str], required: Sequence[str], json: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that is a form or JSON.

    Args:
        fields: the fields of the form by name: "many" files, "one" file, or the description of a text.
        required: names of required fields.
        json: the model of the JSON body.
    """

    def schema(name: str, what: str) -> dict[str, Any]:
        if what == "one":
            return FILE
        if what == "many":  # an optional field with zero files sends nothing, which is the same as no field
            return {"type": "array", "items": FILE, **({"minItems": 1} if name in required else {})}
        return {"type": "string", "description": what}

    properties = {name: schema(name, what) for name, what in fields.items()}
    form = {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}
    content = {"multipart/form-data": {"schema": form}, "application/json": {"schema": _reference(json)}}
    return {"requestBody": {"required": True, "content": content}}


def binary(description: str) -> dict[str, Any]:
    """Describe a body of bytes."""
    return {"schema": {**FILE, "description": description}}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    if model not in MODELS:
        MODELS.append(model)
    return {"$ref": f"#/components/schemas/{model.__name__}"}
