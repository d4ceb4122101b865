"""The OpenAPI document, the same on every server; docs/openapi.json is a copy of it.

python -m serving.openapi > docs/openapi.json
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema

import nnclr_hub

from .routes import ROUTERS
from .routes.schemas import COLLECTION_PATTERN, CONDITION, MODELS, NAME_PATTERN, WHERE

TITLE = "nnclr_hub"
ABOUT = """Image embeddings and retrieval with NNCLR encoders.

Errors are `application/problem+json` (RFC 9457) with a stable `code`. Under `/v1`, errors have the format of the
OpenAI API. Every response has an `X-Request-ID`, which is yours if you send one, and a `Server-Timing`. If the server
has API keys, send `Authorization: Bearer KEY`."""
TAGS = {
    "health": "Liveness, readiness and metrics.",
    "openai": "Embeddings in the format of the OpenAI API, for images.",
    "tei": "The API of Hugging Face's text-embeddings-inference, for images.",
    "embed": "Embed images.",
    "attention": "What an encoder looks at in an image.",
    "collections": "Named sets of vectors, each bound to one encoder.",
    "aliases": "Alternative names of collections.",
    "items": "Items of a collection: add, list, get and delete.",
    "search": "Find the nearest items.",
    "jobs": "Background jobs: start, follow and cancel.",
    "probes": "Linear classifiers on vectors: fit, predict and export.",
    "inspections": "What a collection contains: a map, clusters, duplicates, outliers, suspect labels.",
    "runs": "Pretraining runs in the configured folder, and their reports.",
}
NAMED = ("collections", "aliases", "items", "search", "probes", "inspections")  # whose parameters in the path are names
ANSWER_HEADERS = {
    "X-Request-ID": {"description": "Id of the request.", "schema": {"type": "string"}},
    "Server-Timing": {"description": "Milliseconds by stage.", "schema": {"type": "string"}},
}


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    for route in routes:
        route.operation_id = route.operation_id or f"{route.tags[0]}-{route.name.replace('_', '-')}"
        route.summary = " ".join(route.description.split("\n\n")[0].split()).split(". ")[0].removesuffix(".")
    found = get_openapi(
        title=TITLE,
        version=nnclr_hub.__version__,
        description=ABOUT,
        routes=routes,
        tags=[{"name": name, "description": about} for name, about in TAGS.items()],
    )
    template = "#/components/schemas/{model}"
    modes = [(model, "validation") for model in MODELS]
    _, extra = models_json_schema(modes, ref_template=template)  # type: ignore[arg-type]
    components = found.setdefault("components", {})
    components["schemas"] = dict(sorted({**extra["$defs"], **components.get("schemas", {})}.items()))
    for name, schema in (("Where", WHERE), ("Condition", CONDITION)):
        _name_schema(found, name, schema)
    components = found["components"]
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    found["security"] = [{}, {"key": []}]  # keys are optional
    for operation in operations(found).values():
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path" and operation["tags"][0] in NAMED:
                of_collection = parameter["name"] in ("name", "alias") and operation["tags"][0] != "probes"
                parameter["schema"].setdefault("pattern", COLLECTION_PATTERN if of_collection else NAME_PATTERN)
        for answer in operation["responses"].values():
            answer.setdefault("headers", {}).update(ANSWER_HEADERS)
    return found


def _name_schema(document: dict[str, Any], name: str, schema: dict[str, Any]) -> None:
    """Replace a schema wherever it occurs by a reference to a component of that name."""
    reference = {"$ref": f"#/components/schemas/{name}"}

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return reference if value == schema else {key: replaced(one) for key, one in value.items()}
        return [replaced(one) for one in value] if isinstance(value, list) else value

    for part in ("paths", "components"):
        document[part] = replaced(document[part])
    document["components"]["schemas"][name] = schema


def operations(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the operations of a document by their ids."""
    return {one["operationId"]: one for methods in found["paths"].values() for one in methods.values()}


def text() -> str:
    """Return the text of docs/openapi.json."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
