"""Field types that several bodies share, the bodies of errors, and OpenAPI descriptions of bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from nnclr_hub.errors import InvalidFilter
from nnclr_hub.store.spec import MAX_DIM
from nnclr_hub.workbench.privacy import public_key, public_where

from .where_schema import KEY, WHERE


class _FailFast(FailFast):
    """A hashable FailFast, which may be used in a union."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


# for every list that a client sends: one error is reported, however many members are wrong
FIRST_WRONG = _FailFast()
NAME_PATTERN = r"^(?!\.{1,2}$)[A-Za-z0-9._~-]{1,128}$"  # for OpenAPI; `check_name` checks it
# for OpenAPI: no ASCII punctuation but . _ ~ -; `check_collection_name` checks more
COLLECTION_PATTERN = r"^(?! )(?!\.{1,2}$)[^\x00-\x1f!-,/:-@\[-^`{-}\x7f-\xa9]{1,128}(?<! )$"
Name = Annotated[
    str, Field(description="1 to 128 characters of A-Z a-z 0-9 . _ ~ -", json_schema_extra={"pattern": NAME_PATTERN})
]
CollectionName = Annotated[
    str,
    Field(
        description="letters and digits of any script, spaces inside, and . _ ~ -; 1 to 128 bytes in UTF-8 (NFC)",
        json_schema_extra={"pattern": COLLECTION_PATTERN},
    ),
]
Metadata = Annotated[dict[str, Any], Field(description="JSON values by key, at most 64 KiB")]
Where = Annotated[dict[str, Any], AfterValidator(public_where), WithJsonSchema(WHERE)]
MetadataKey = Annotated[str, AfterValidator(public_key), WithJsonSchema(KEY)]
ImageText = Annotated[
    str,
    Field(
        description="data URI or base64 of an image; a web address if the server allows it",
        json_schema_extra={"minLength": 1},
    ),
]
Vector = Annotated[
    Annotated[list[float], FIRST_WRONG, Field(max_length=MAX_DIM, json_schema_extra={"minItems": 1})]
    | Annotated[str, Field(json_schema_extra={"minLength": 1})],
    Field(description="numbers, or base64 of little-endian float32"),
]
# JSON has one type of number, and JSON Schema calls 5.0 an integer; `strict` alone would refuse it
INTEGRAL = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
Integer = Annotated[int, INTEGRAL]
Box = Annotated[tuple[float, float, float, float], Field(description="x0, y0, x1, y1 on the upright image, in pixels")]


class Strict(BaseModel):
    """Refuses unknown fields, so that no misspelled one is silently ignored. Does not convert types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


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


def one_of(*fields: str) -> dict[str, Any]:
    """Return the JSON schema by which exactly one of the fields has a value; "a b" are two that belong together."""
    groups = [name.split() for name in fields]
    choices: list[dict[str, Any]] = []
    for group in groups:
        others = {other[0]: {"type": "null"} for other in groups if other is not group}
        choices.append({"required": group, "properties": others | {name: {"not": {"type": "null"}} for name in group}})
    return {"oneOf": choices}


class ItemError(BaseModel):
    """Why one part of a request failed."""

    code: str
    detail: str


class Problem(BaseModel):
    """RFC 9457 problem with a stable code for programs."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = Field(description="path of the request, with the request id after #")
    code: str
    errors: list[dict[str, Any]] | None = Field(None, description="one entry per part of the request that failed")


class OpenAIErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(BaseModel):
    """The error envelope of the OpenAI API."""

    error: OpenAIErrorDetail


# ---- OpenAPI descriptions of bodies that a route reads itself

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
