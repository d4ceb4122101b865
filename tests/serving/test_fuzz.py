"""Whatever is sent to whichever operation: no failure, and no answer that the description does not tell of."""

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from rest_requests import upload

from serving.openapi import document

# what names lead to: things that are there, for else most requests would end with 404
KNOWN = {"name": "photos", "id": "tom", "alias": "live"}
SHORT, LONG = 8, 300
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}

schema = schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def sent(server, pictures):
    """Sends a case and holds the answer to the description."""
    with requests.Session() as session:

        def restore() -> None:
            """What is there, in case that a request before has deleted it."""
            url = f"{server.url}/api/v1"
            session.put(f"{url}/collections/photos", json={})
            session.put(f"{url}/aliases/live", json={"collection": "photos"})
            files = [(name, content) for name, content in upload(pictures[:1])]
            session.post(f"{url}/collections/photos/items", files=files, data={"items": '[{"id": "tom"}]'})

        def send(case, *, known: bool) -> None:
            if known:
                restore()
                case.path_parameters.update({k: v for k, v in KNOWN.items() if k in case.path_parameters})
                if case.operation.definition.raw["operationId"] == "openai-model":
                    case.path_parameters["name"] = "default"
            # a description cannot say how long vectors are, or which base64 is a picture
            case.call_and_validate(
                base_url=server.url,
                session=session,
                excluded_checks=[schemathesis.checks.CHECKS.get_one("positive_data_acceptance")],
            )

        yield send


@schema.parametrize()
@settings(max_examples=SHORT, derandomize=True, **QUIET)
def test_strange_requests_are_answered_as_described(case, sent):
    sent(case, known=False)


@schema.parametrize()
@settings(max_examples=SHORT, derandomize=True, **QUIET)
def test_strange_requests_to_what_is_there_are_answered_as_described(case, sent):
    sent(case, known=True)
