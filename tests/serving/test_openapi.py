"""The description of the API: kept, complete, and made from the table of refusals."""

import json
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.workbench.requests import Request, option
from nnclr_hub.workbench.tasks import Task
from serving.access import WRITE, AccessRules
from serving.openapi import document, operations, text
from serving.problems import ANYWHERE, problem_kind
from serving.routes.jobs import declare
from serving.routes.router import Router

ROOT = Path(__file__).parents[2]


def test_the_stored_document_is_current():
    """If not: python -m serving.openapi > docs/openapi.json"""
    assert (ROOT / "docs" / "openapi.json").read_text() == text()


def test_a_server_returns_the_stored_document(client):
    assert client.get("/openapi.json").json() == json.loads(text())


def test_every_operation_has_an_id_and_a_description_and_documents_the_common_errors():
    for name, operation in operations(document()).items():
        assert name.startswith(f"{operation['tags'][0]}-")
        assert operation["description"].strip(), name
        answers = operation["responses"]
        for kind in ANYWHERE.split():
            refusal = problem_kind(kind)
            status = 400 if refusal.status in (415, 422) and name.startswith("openai-") else refusal.status
            if (name, status) == ("health-readyz", 503):
                continue  # its 503 is an answer
            assert f"`{refusal.code}`" in answers[str(status)]["description"], (name, refusal)
        for status, answer in answers.items():
            if status >= "400" and (name, status) != ("health-readyz", "503"):
                kind = "application/json" if name.startswith("openai-") else "application/problem+json"
                assert list(answer["content"]) == [kind], (name, status)
            assert {"X-Request-ID", "Server-Timing"} <= answer["headers"].keys()


@dataclass(frozen=True)
class LabeledRequest(Request):
    """What to count."""

    collection: str = option("name or alias of the collection")
    key: str = option("metadata key of the label", "label")
    where_it_is: str = option("path on this machine", "", hidden=True)


def test_a_new_task_gets_a_route_without_code_of_the_server():
    router = Router(prefix="/api/v1", tags=["jobs"])
    run = lambda bench, request, context: None  # noqa: E731
    declare(Task("labeled", LabeledRequest, "/collections/{collection}/labeled", False, run), router)
    [route] = router.routes
    assert (route.path, route.status_code) == ("/api/v1/collections/{name}/labeled", 202)
    assert AccessRules([router]).of("POST", "/api/v1/collections/photos/labeled").scope == WRITE
