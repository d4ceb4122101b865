"""What a caller hears where Ray's proxy answers for itself."""

import anyio
import httpx
import pytest
from starlette.responses import PlainTextResponse, Response

from nnclr_hub.client.answers import error_of
from nnclr_hub.client.http import answer_of
from nnclr_hub.errors import NotReady, Overloaded, ServerUnreachable
from serving.ray_proxy import ProxyResponses


def heard(app, path: str = "/api/v1/embed") -> httpx.Response:
    """The answer of an app behind the front."""

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(ProxyResponses(app)), base_url="http://here"
        ) as client:
            return await client.get(path)

    return anyio.run(ask)


async def died(scope, receive, send) -> None:
    """Ray's proxy returns without a word when a replica dies over a request."""


@pytest.mark.parametrize(
    ("app", "status", "kind"),
    [
        (died, 503, ServerUnreachable),
        (PlainTextResponse("Request dropped due to backpressure", 429), 429, Overloaded),
        (PlainTextResponse("Request dropped due to backpressure", 503), 503, NotReady),
        (PlainTextResponse("Path '/x' not found. Ping http://.../-/routes", 404), 503, NotReady),
    ],
)
def test_rays_own_refusals_are_problems_that_say_to_come_back(app, status, kind):
    response = heard(app)
    assert (response.status_code, response.headers["retry-after"]) == (status, "1")
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["content-length"]) == len(response.content)
    error = error_of(answer_of(response, response.content))
    assert type(error) is kind
    assert "Ray" not in str(error)
    assert "again" in str(error)
    openai = heard(app, "/v1/embeddings").json()["error"]
    assert (openai["code"], openai["message"]) == (kind.code, str(error))


def test_a_replicas_answer_passes_as_it_is_with_its_id_once():
    """Whatever its status: what the replica refused, it refused."""
    for status in (200, 404, 429, 503):
        said = Response(b"said", status, {"server-timing": "total;dur=1", "x-request-id": "a"})
        said.headers.append("x-request-id", "a")
        response = heard(said)
        assert (response.status_code, response.content) == (status, b"said")
        assert response.headers.get_list("x-request-id") == ["a"]


def test_rays_own_pages_pass():
    assert heard(PlainTextResponse("success"), "/-/healthz").text == "success"
