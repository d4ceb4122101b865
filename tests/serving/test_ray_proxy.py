"""What clients get where Ray's proxy answers in place of a replica."""

import anyio
import httpx
import pytest
from starlette.responses import PlainTextResponse, Response

from nnclr_hub.client.transport import Answer, error_of
from nnclr_hub.errors import NotReady, Overloaded, ServerUnreachable
from serving.ray_serve import ProxyResponses


def response_of(app, path: str = "/api/v1/embed", **headers: str) -> httpx.Response:
    """Get the response of an app behind the proxy layer."""

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(ProxyResponses(app)), base_url="http://here"
        ) as client:
            return await client.get(path, headers=headers)

    return anyio.run(get)


async def died(scope, receive, send) -> None:
    """Return without a response, as Ray's proxy does when a replica dies."""


@pytest.mark.parametrize(
    ("app", "status", "kind"),
    [
        (died, 503, ServerUnreachable),
        (PlainTextResponse("Request dropped due to backpressure", 429), 429, Overloaded),
        (PlainTextResponse("Request dropped due to backpressure", 503), 503, NotReady),
        (PlainTextResponse("Path '/x' not found. Ping http://.../-/routes", 404), 503, NotReady),
    ],
)
def test_errors_of_the_proxy_are_problems_that_ask_for_a_retry(app, status, kind):
    response = response_of(app)
    assert (response.status_code, response.headers["retry-after"]) == (status, "1")
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["content-length"]) == len(response.content)
    error = error_of(Answer("http://here", status, response.headers, response.content))
    assert type(error) is kind
    assert "Ray" not in str(error)
    openai = response_of(app, "/v1/embeddings").json()["error"]
    assert (openai["code"], openai["message"]) == (kind.code, str(error))


def test_a_response_of_a_replica_passes_with_a_single_request_id():
    for status in (200, 404, 429, 503):
        answer = Response(b"body", status, {"server-timing": "total;dur=1", "x-request-id": "a"})
        answer.headers.append("x-request-id", "a")
        response = response_of(answer)
        assert (response.status_code, response.content) == (status, b"body")
        assert response.headers.get_list("x-request-id") == ["a"]


def test_the_routes_of_ray_pass():
    assert response_of(PlainTextResponse("success"), "/-/healthz").text == "success"


@pytest.mark.parametrize("offer", ["websocket", "h2c"])
def test_an_offer_to_change_the_protocol_closes_the_connection(offer):
    """The parser of Ray's proxy would execute the body as the next request of this connection."""
    response = response_of(PlainTextResponse("never reached"), upgrade=offer, connection="upgrade")
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
    assert response.headers["connection"] == "close"
