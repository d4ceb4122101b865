"""The description of the API, the same on every server; docs/openapi.json is a copy of it.

python -m serving.openapi > docs/openapi.json
"""

from __future__ import annotations

import json
import sys
from functools import cache
from http import HTTPStatus
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

import nnclr_hub
from nnclr_hub.errors import NNCLRHubError, OpenedForReading

from .examples import EXAMPLES
from .keys import WRITE
from .problems import answers, refusal_of
from .routes import ROUTERS
from .routes.body_schemas import MODELS
from .schemas.fields import OpenAIError, Problem
from .security.access import access_of

TITLE = "nnclr_hub"
ABOUT = """Image embeddings and retrieval with NNCLR encoders.

Errors are `application/problem+json` (RFC 9457) with a stable `code`, below `/v1` OpenAI's envelope. Every answer has
an `X-Request-ID`, yours if you send one, and a `Server-Timing`. Where the server has keys, send
`Authorization: Bearer KEY`."""
TAGS = {
    "health": "Whether the server lives, is ready, and what it counted.",
    "openai": "What OpenAI's clients speak, for images.",
    "embed": "Images to vectors.",
    "attention": "What an encoder looks at in an image.",
    "collections": "Named sets of vectors, each bound to one encoder.",
    "aliases": "Further names of collections.",
    "items": "What is in a collection.",
    "search": "Neighbors.",
    "jobs": "Work in the background: how far it is, cancelling it, and what starts it.",
    "probes": "Linear classifiers on vectors: fitted from labels, used, exported.",
    "runs": "Pretraining runs below the server's folder of them, and their reports.",
}
KEY_HEADER = "Idempotency-Key"
KEY_MEANING = "sent again with the same key within a day, the request gets the same answer and is not done again"
KEY_PATTERN = "^[!-~]{1,255}$"
KEY_REFUSALS = ("idempotency_in_flight", "idempotency_mismatch", "idempotency_key_invalid")
ANSWER_HEADERS = {
    "X-Request-ID": {"description": "the request's id", "schema": {"type": "string"}},
    "Server-Timing": {"description": "milliseconds by stage", "schema": {"type": "string"}},
}


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    for route in routes:
        route.operation_id = route.operation_id or f"{route.tags[0]}-{route.name.replace('_', '-')}"
    found = get_openapi(
        title=TITLE,
        version=nnclr_hub.__version__,
        description=ABOUT,
        routes=routes,
        tags=[{"name": name, "description": about} for name, about in TAGS.items()],
    )
    template = "#/components/schemas/{model}"
    modes = [(model, "validation") for model in (Problem, OpenAIError, *MODELS)]
    _, extra = models_json_schema(modes, ref_template=template)  # type: ignore[arg-type]
    components = found.setdefault("components", {})
    components["schemas"] = dict(sorted({**extra["$defs"], **components.get("schemas", {})}.items()))
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{}, {"key": []}]  # only where the server has keys
    writes = {route.operation_id: "POST" in route.methods for route in routes if access_of(route).scope == WRITE}
    for name, operation in operations(found).items():
        operation["x-codeSamples"] = [
            {"lang": language, "label": label, "source": source}
            for known, example in EXAMPLES
            if known == name
            for language, label, source in (("Shell", "curl", example.curl()), ("Python", "Python", example.python()))
        ]
        if writes.get(name):
            _tell_of_keys(operation)
        if name in writes:
            _tell_of_refusals(operation, OpenedForReading)
        for answer in operation["responses"].values():
            answer.setdefault("headers", {}).update(ANSWER_HEADERS)
    return found


def _tell_of_keys(operation: dict[str, Any]) -> None:
    """A POST that changes something may carry an Idempotency-Key, and can be refused for it."""
    about = {"name": KEY_HEADER, "in": "header", "required": False, "description": KEY_MEANING}
    operation.setdefault("parameters", []).append({**about, "schema": {"type": "string", "pattern": KEY_PATTERN}})
    _tell_of_refusals(operation, *KEY_REFUSALS)


def _tell_of_refusals(operation: dict[str, Any], *kinds: str | type[NNCLRHubError]) -> None:
    """Adds what is refused before a route is reached; see `problems.answers`."""
    known = answers(*kinds)
    for refusal in map(refusal_of, kinds):
        new = {**known[refusal.status], "description": HTTPStatus(refusal.status).phrase}
        answer = operation["responses"].setdefault(str(refusal.status), new)
        answer["description"] += f"\n- `{refusal.code}`: {refusal.meaning}"


def operations(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The operations of a document by their ids."""
    return {one["operationId"]: one for methods in found["paths"].values() for one in methods.values()}


def text() -> str:
    """The document as it is kept."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
