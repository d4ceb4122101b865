"""Random requests to every operation: no server error, and no response that OpenAPI does not describe."""

import zlib
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import httpx
import pytest
import requests
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from rest_requests import ended, upload

from nnclr_hub.workbench.requests import FORMATS
from serving.openapi import document

SHORT, LONG = 8, 300
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
# Without `explicit`: its combinations of boundary values are up to 3,000 requests for an operation.
RANDOM = (Phase.generate,)
HEAD = 32_000  # characters of an address; uvicorn refuses longer heads itself, in plain text
# existing names, because most other requests would end with 404
KNOWN = {"name": "photos", "id": "tom", "alias": "live", "number": "latest"}
# what OpenAPI cannot describe: a request that the schema allows may be refused
NOT_DESCRIBED = {
    "POST /api/v1/embed": "which text is an image",
    "POST /embed": "which text is an image",
    "POST /api/v1/attention": "which text is an image",
    "POST /api/v1/collections/{name}/items": "which text is an image",
    "PUT /api/v1/collections/{name}": "which characters of Unicode are letters",
    "PUT /api/v1/aliases/{alias}": "which characters of Unicode are letters",
    "PUT /api/v1/collections/{name}/items": "the length of the collection's vectors",
    "POST /api/v1/collections/{name}/search": "the length of the collection's vectors",
    "GET /api/v1/collections/{name}/items": "which text is a cursor",
    "GET /api/v1/collections/{name}/count": "which text is a filter",
    "GET /api/v1/collections/{name}/changes": "the log of a collection that was replaced",
    "PATCH /api/v1/collections/{name}/items": "which text is a date",
    "POST /api/v1/collections/{name}/delete": "which text is a date",
    "POST /api/v1/collections/{name}/facets": "which text is a date",
    "POST /api/v1/collections/{name}/index": "the folders of the server",
    "POST /api/v1/collections/{name}/duplicates": "a filter needs a threshold",
    "POST /api/v1/collections/{name}/imports": "bytes that have arrived, keys of a header",
    "POST /api/v1/collections/{name}/labels": "columns of the table",
    "POST /api/v1/probes": "a filter needs a collection, items need two labels",
    "POST /api/v1/probes/{name}/predict": "which vectors belong to the probe",
}


def described() -> dict:
    """Return OpenAPI with filters of two levels, because schemathesis cannot negate a schema that contains itself."""
    whole = deepcopy(document())
    where = whole["components"]["schemas"]["Where"]
    inner = deepcopy(where)
    nested = {"$ref": "#/components/schemas/Where"}
    for name, conditions in where["properties"].items():
        inner["properties"][name]["items"]["anyOf"].remove(nested)
        choices = conditions["items"]["anyOf"]
        choices[choices.index(nested)] = inner
    return whole


@cache
def operations() -> dict[str, Any]:
    """Return the operations by label. schemathesis takes seconds to import, in each process that collects tests."""
    import schemathesis

    # files to import are bytes
    schemathesis.serializer.alias([one.media_type for one in FORMATS.values()], "application/octet-stream")
    found = schemathesis.openapi.from_dict(described()).get_all_operations()
    return {one.ok().label: one.ok() for one in found}


@pytest.fixture(scope="module")
def server(model, tmp_path_factory, serve):
    """Run a separate server: strange requests leave anything behind."""
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "images").mkdir()
    options = {"source_folders": [str(folder / "images")], "backup_to": str(folder / "backups")}
    yield from serve(model, folder / "store", capacity=100, **options)


@pytest.fixture(scope="module")
def sent(server, image_files):
    """Return a function that sends a case and compares the response with its description."""
    from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

    with requests.Session() as session:

        def restore() -> None:
            session.put(f"{server.url}/api/v1/collections/photos", json={})
            session.put(f"{server.url}/api/v1/aliases/live", json={"collection": "photos"})
            tom = {"items": '[{"id": "tom"}]'}
            session.post(f"{server.url}/api/v1/collections/photos/items", files=upload(image_files[:1]), data=tom)

        def inspect() -> None:
            path = "/api/v1/collections/photos/inspections"
            with httpx.Client(base_url=server.url, timeout=60) as client:
                if not client.get(path).json()["inspections"]:
                    client.post("/api/v1/collections/photos/items", files=upload(image_files[:12]))
                    assert ended(client, client.post(path, json={}))["state"] == "done"

        def send(case) -> None:
            """Send half of the cases to existing items; the case decides which half, so that it can be repeated."""
            prepared = requests.Request(case.method, server.url, params=case.query).prepare()
            assume(len(prepared.url or "") < HEAD)
            if "{number}" in case.operation.label:
                inspect()
            if zlib.crc32(repr((case.body, case.query, case.path_parameters)).encode()) % 2:
                case.path_parameters.update({k: v for k, v in KNOWN.items() if k in case.path_parameters})
                if case.operation.definition.raw["operationId"] == "openai-model":
                    case.path_parameters["name"] = "default"
            excluded = [positive_data_acceptance] if case.operation.label in NOT_DESCRIBED else []
            # the first answers 200 with an error for each wrong query; the others take any bytes, headers and keys
            if case.operation.label.endswith(("/search/batch", "POST /api/v1/collections/{name}/imports", "/{key}")):
                excluded.append(negative_data_rejection)
            if case.media_type == "multipart/form-data" and isinstance(case.body, dict) and [] in case.body.values():
                excluded.append(negative_data_rejection)  # a form leaves out an empty list
            case.call_and_validate(base_url=server.url, session=session, excluded_checks=excluded)
            if case.method in ("DELETE", "PUT"):
                restore()

        restore()
        yield send
        assert session.get(f"{server.url}/readyz").status_code == 200


LABELS = [f"{method.upper()} {path}" for path, methods in document()["paths"].items() for method in methods]


def fuzz(label: str, sent: Callable[[Any], None], **options: Any) -> None:
    """Send requests that the schema allows, and requests that it does not allow."""
    from schemathesis import GenerationMode

    cases = st.one_of([operations()[label].as_strategy(generation_mode=mode) for mode in GenerationMode])
    settings(phases=RANDOM, **QUIET, **options)(given(case=cases)(lambda case: sent(case)))()


@pytest.mark.parametrize("label", LABELS)
def test_strange_requests_are_answered_as_described(label, sent):
    fuzz(label, sent, max_examples=SHORT, derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_very_many_strange_requests_are_answered_as_described(label, sent):
    fuzz(label, sent, max_examples=LONG)


def test_no_operation_is_left_out():
    assert set(LABELS) == set(operations())
    assert len(LABELS) > 40
