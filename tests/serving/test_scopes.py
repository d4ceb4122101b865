"""The access that routes declare."""

import pytest

from serving.access import AccessRules
from serving.keys import READ, WRITE
from serving.openapi import document
from serving.routes import PAGES, ROUTERS
from serving.routes.router import Router

RULES = AccessRules((*ROUTERS, *PAGES))
# a POST, PUT or DELETE that changes nothing is listed here too
READ_BY_BODY = {
    ("POST", "/v1/embeddings"),
    ("POST", "/embed"),
    ("POST", "/api/v1/embed"),
    ("POST", "/api/v1/attention"),
    ("POST", "/api/v1/collections/{name}/search"),
    ("POST", "/api/v1/collections/{name}/search/batch"),
    ("POST", "/api/v1/collections/{name}/lookup"),
    ("POST", "/api/v1/collections/{name}/facets"),
    ("POST", "/api/v1/collections/{name}/thumbnails"),
    ("POST", "/api/v1/probes/{name}/predict"),
}
KEYLESS = {"/healthz", "/readyz", "/health"}


def test_only_the_listed_routes_need_less_than_their_method_suggests():
    for path, methods in document()["paths"].items():
        for method in map(str.upper, methods):
            scope = RULES.of(method, path).scope
            expected = READ if method == "GET" or (method, path) in READ_BY_BODY else WRITE
            assert scope == (None if path in KEYLESS else expected), (method, path)


def test_a_route_without_declared_access_stops_the_start():
    router = Router()

    @router.on("GET", "/open", READ)
    def open_route() -> None: ...

    assert AccessRules([router]).of("HEAD", "/open").scope == READ

    @router.get("/forgotten")
    def forgotten_route() -> None: ...

    with pytest.raises(TypeError, match="/forgotten"):
        AccessRules([router])


@pytest.mark.parametrize("name", ["search", "embed", "embeddings", "predict", "v1", "healthz", "login"])
def test_no_name_turns_a_write_into_a_read(name):
    for method, path in (
        ("POST", f"/api/v1/collections/{name}/items"),
        ("PUT", f"/api/v1/collections/{name}"),
        ("DELETE", f"/api/v1/collections/{name}"),
        ("DELETE", f"/api/v1/collections/x/items/{name}"),
        ("POST", f"/api/v1/collections/x/items/{name}"),
        ("POST", f"/api/v1/collections/{name}/snapshot"),
        ("POST", f"/api/v1/probes/{name}"),
        ("PUT", f"/api/v1/collections/x/{name}"),
        ("POST", f"/v1/{name}x"),
        ("POST", f"//v1/{name}"),
        ("POST", f"/v1/{name}/"),
        ("POST", f"/v1/{name}\n"),
        ("PATCH", f"/v1/{name}"),
        ("BREW", "/app/x"),
        ("POST", "/app/x"),
    ):
        assert RULES.of(method, path).scope == WRITE, path
