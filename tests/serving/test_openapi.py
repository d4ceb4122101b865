"""The description of the API: kept, complete, and made from the table of refusals."""

import json
from pathlib import Path

from serving.openapi import document, operations, text
from serving.problems import ANYWHERE, problem_kind

ROOT = Path(__file__).parents[2]


def test_the_stored_document_is_current():
    """If not: python -m serving.openapi > docs/openapi.json"""
    assert (ROOT / "docs" / "openapi.json").read_text() == text()


def test_a_server_returns_the_stored_document(client):
    assert client.get("/openapi.json").json() == json.loads(text())


def test_operations_have_an_id_and_a_description():
    for name, operation in operations(document()).items():
        assert name.startswith(f"{operation['tags'][0]}-")
        assert operation["description"].strip(), name


def test_every_operation_documents_the_common_errors():
    for name, operation in operations(document()).items():
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


def test_every_reference_exists():
    whole = text()
    names = {part.partition('"')[0] for part in whole.split('"#/components/schemas/')[1:]}
    assert names <= document()["components"]["schemas"].keys()
