"""The schemas of requests and responses: field types, bodies that are made from dataclasses, filters, and errors.

    class SearchRequest(schema_of(SearchQuery, Example, positive=(list[Example] | None, None))): ...

A request is checked by its dataclass (`SearchQuery`, `NewImage`, the requests of tasks), so that every address of a
bench refuses the same. Its schema here has the same fields with their types and defaults. It describes their limits,
and does not check them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, Union, get_args

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
    create_model,
)

from nnclr_hub.errors import InvalidFilter
from nnclr_hub.store.checks import NAME
from nnclr_hub.store.spec import MAX_DIM
from nnclr_hub.store.where import MAX_CONDITIONS, MAX_DEPTH, MAX_IDS, MAX_IN
from nnclr_hub.workbench.privacy import ROOT, public_key, public_where
from nnclr_hub.workbench.requests import field_types

NAME_PATTERN = rf"^(?!\.{{1,2}}$){NAME}$"  # for OpenAPI; `check_name` checks it
# for OpenAPI: no ASCII punctuation but . _ ~ -; `check_collection_name` checks more
COLLECTION_PATTERN = r"^(?! )(?!\.{1,2}$)[^\x00-\x1f!-,/:-@\[-^`{-}\x7f-\xa9]{1,128}(?<! )$"


# ---- the JSON schema of filters; `store.where` checks them, and also reports what is wrong

KEY: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 128,
    "pattern": r'^[^"\\\u0000]+$',
    "not": {"const": ROOT},
}
INDEXABLE = {name: value for name, value in KEY.items() if name != "not"}  # a key that no answer shows may be indexed
MAX_NUMBER = 2**63 - 1


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _number(low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high}


def _bounds(value: dict[str, Any]) -> dict[str, Any]:
    return _object(dict.fromkeys(("gt", "gte", "lt", "lte"), value), minProperties=1)


_TEXT = {"type": "string", "pattern": r"^[^\u0000]*$"}
_SCALAR = {"anyOf": [_TEXT, _number(), {"type": "boolean"}, {"type": "null"}]}
_SCALARS = {"type": "array", "items": _SCALAR, "maxItems": MAX_IN}
_KINDS = {
    "match": _SCALAR,
    "in": _SCALARS,
    "range": _bounds({"anyOf": [_TEXT, _number()]}),
    "exists": {"type": "boolean"},
    "prefix": _TEXT,
    "contains": _SCALAR,
    "contains_any": _SCALARS,
    "contains_all": _SCALARS,
    "length": {"anyOf": [_number(), _bounds(_number())]},
    "date": _bounds({"type": "string", "description": "ISO 8601, such as 2026-01-31 or 2026-01-31T12:00:00Z"}),
    "geo": _object(
        {"lat": _number(-90, 90), "lon": _number(-180, 180), "radius": _number(0)}, required=["lat", "lon", "radius"]
    ),
}
CONDITION = _object({"key": KEY, **_KINDS}, required=["key"], oneOf=[{"required": [kind]} for kind in _KINDS])
_ID = {"type": "string", "pattern": NAME_PATTERN}
_IDS = _object({"ids": {"type": "array", "items": _ID, "maxItems": MAX_IDS}}, required=["ids"])
_NESTED = {"$ref": "#/components/schemas/Where"}  # `openapi.document` gives the schema below this name
_CLAUSE = {"type": "array", "items": {"anyOf": [CONDITION, _IDS, _NESTED]}, "maxItems": MAX_CONDITIONS}
WHERE = _object(
    dict.fromkeys(("must", "should", "must_not"), _CLAUSE),
    description="filter on metadata: must, should and must_not, each a list of conditions or of further filters; at "
    f"most {MAX_CONDITIONS} together and {MAX_IDS} ids, at most {MAX_DEPTH} levels deep; an empty should matches "
    "nothing, an empty filter everything",
    examples=[{"must": [{"key": "label", "match": "cat"}]}],
)


# ---- types of fields


class _FailFast(FailFast):
    """A hashable FailFast, which may be used in a union."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


def described(description: str | None = None, **schema: Any) -> Any:
    """Return a field that is described further in OpenAPI, and checked elsewhere."""
    return Field(description=description, json_schema_extra=schema or None)


# for every list that a client sends: one error is reported, however many members are wrong
FIRST_WRONG = _FailFast()
Name = Annotated[str, described("1 to 128 characters of A-Z a-z 0-9 . _ ~ -", pattern=NAME_PATTERN)]
_NAMES = "letters and digits of any script, spaces inside, and . _ ~ -; 1 to 128 bytes in UTF-8 (NFC)"
CollectionName = Annotated[str, described(_NAMES, pattern=COLLECTION_PATTERN)]
Metadata = Annotated[dict[str, Any], described("JSON values by key, at most 64 KiB")]
Where = Annotated[dict[str, Any], AfterValidator(public_where), WithJsonSchema(WHERE)]
MetadataKey = Annotated[str, AfterValidator(public_key), WithJsonSchema(KEY)]
IndexedKey = Annotated[str, described(**INDEXABLE)]
_IMAGE = "data URI or base64 of an image; a web address if the server allows it"
ImageText = Annotated[str, described(_IMAGE, minLength=1)]
Vector = Annotated[
    Annotated[list[float], FIRST_WRONG, Field(max_length=MAX_DIM, json_schema_extra={"minItems": 1})]
    | Annotated[str, described(minLength=1)],
    Field(description="numbers, or base64 of little-endian float32"),
]
# JSON has one type of number, and JSON Schema calls 5.0 an integer; `strict` alone would refuse it
INTEGRAL = BeforeValidator(lambda value: int(value) if isinstance(value, float) and value.is_integer() else value)
Integer = Annotated[int, INTEGRAL]
Box = Annotated[tuple[float, float, float, float], described("x0, y0, x1, y1 on the upright image, in pixels")]


class Strict(BaseModel):
    """Refuses unknown fields, so that no misspelled one is silently ignored. Does not convert types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


# ---- bodies from dataclasses

OF_TEXT = {"min_length": "minLength", "max_length": "maxLength"}
LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
LIMITS |= {"min_length": "minItems", "max_length": "maxItems"}

# stricter types of fields of dataclasses, by name
TYPES: dict[str, Any] = {
    "box": Box,
    "field": MetadataKey,
    "group_by": MetadataKey,
    "id": Name,
    "image": ImageText,
    "metadata": Metadata,
    "vector": Vector,
    "where": Where,
}


def optional(kind: Any) -> Any:
    """Return `kind | None`, which type checkers refuse for an Annotated type."""
    return kind | None  # type: ignore[operator]


def limited(kind: Any, limits: Mapping[str, Any] | None) -> Any:
    """Return the type of a field with its limits described. None is always allowed where the type has it."""
    if not limits:
        return kind
    others = tuple(one for one in get_args(kind) if one is not type(None))
    may_be_null = type(None) in get_args(kind)
    inner: Any = Union[others] if may_be_null else kind  # noqa: UP007
    words = OF_TEXT if inner is str else LIMITS
    inner = Annotated[inner, described(**{words[name]: value for name, value in limits.items()})]
    return optional(inner) if may_be_null else inner


def schema_of(kind: type, base: type[BaseModel] = Strict, /, **given: Any) -> Any:
    """Return the schema of a request that is a dataclass, without its hidden fields.

    Args:
        base: its fields come first.
        given: types of fields, or `(type, default)`; None leaves the field out.
    """
    hints = field_types(kind)
    described_as = _field_descriptions(kind.__doc__ or "")
    made: dict[str, Any] = {}
    for one in fields(kind):
        if one.metadata.get("hidden") or given.get(one.name, ...) is None:
            continue
        default: Any = ... if one.default is MISSING else one.default
        default = list(default) if isinstance(default, tuple) else default
        found: Any = hints[one.name]
        if one.name in given:
            found, default = given[one.name] if isinstance(given[one.name], tuple) else (given[one.name], default)
        elif one.name in TYPES:
            found = TYPES[one.name] if default is not None else optional(TYPES[one.name])
        elif found in (int, int | None):
            found = Integer if found is int else optional(Integer)
        found = limited(found, one.metadata.get("limits"))
        about: dict[str, Any] = {"description": one.metadata.get("doc") or described_as.get(one.name)}
        if one.name in TYPES and not one.metadata.get("doc"):
            del about["description"]  # the type describes itself, not the field
        if one.default_factory is not MISSING:
            made[one.name] = (found, Field(default_factory=one.default_factory, **about))
        else:
            made[one.name] = (found, Field(default, **about))
    return create_model(kind.__name__, __base__=base, __doc__=(kind.__doc__ or "").split("\n\n")[0], **made)


def _field_descriptions(doc: str) -> dict[str, str]:
    """Return the first sentence of each line `name: description` of a docstring, in terms of JSON."""
    found = re.findall(r"^    (\w+): (.+(?:\n     +.+)*)", doc, re.MULTILINE)
    shown = {name: " ".join(text.split()).split(". ")[0].removesuffix(".") for name, text in found}
    return {name: re.sub(r"\bNone\b", "null", text) for name, text in shown.items()}


def one_of(*choices: str) -> dict[str, Any]:
    """Return the JSON schema by which exactly one of the fields has a value; "a b" are two that belong together."""
    groups = [name.split() for name in choices]
    found: list[dict[str, Any]] = []
    for group in groups:
        others = {other[0]: {"type": "null"} for other in groups if other is not group}
        found.append({"required": group, "properties": others | {name: {"not": {"type": "null"}} for name in group}})
    return {"oneOf": found}


# ---- filters in a query

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


# ---- errors


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
MODELS: list[type[BaseModel]] = [Problem, OpenAIError]  # `openapi.document` adds them to the components


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _reference(model)}}}}


def form_body(
    described: Mapping[str, str], required: Sequence[str], json: type[BaseModel], *others: str
) -> dict[str, Any]:
    """Describe a body that is a form or JSON.

    Args:
        described: the fields of the form by name: "many" files, "one" file, or the description of a text.
        required: names of required fields.
        json: the model of the JSON body.
        others: media types of files that are accepted, too.
    """

    def schema(name: str, what: str) -> dict[str, Any]:
        if what == "one":
            return FILE
        if what == "many":  # an optional field with zero files sends nothing, which is the same as no field
            return {"type": "array", "items": FILE, **({"minItems": 1} if name in required else {})}
        return {"type": "string", "description": what}

    properties = {name: schema(name, what) for name, what in described.items()}
    body = json_body(json)
    body["requestBody"]["content"] |= {"multipart/form-data": {"schema": _object(properties, required=list(required))}}
    body["requestBody"]["content"] |= {kind: {"schema": FILE} for kind in others}
    return body


def binary(description: str) -> dict[str, Any]:
    """Describe a body of bytes."""
    return {"schema": {**FILE, "description": description}}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    if model not in MODELS:
        MODELS.append(model)
    return {"$ref": f"#/components/schemas/{model.__name__}"}
