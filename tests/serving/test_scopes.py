"""The table of scopes, held against every route that the app has."""

import re

import pytest
from fastapi.routing import APIRoute

from serving.security.routes import rule_of

# whoever adds a route that is a POST, PUT or DELETE and yet needs no write scope adds it here too
READ_BY_BODY = {
    ("POST", "/v1/embeddings"),
    ("POST", "/api/v1/embed"),
    ("POST", "/api/v1/attention"),
    ("POST", "/api/v1/collections/{name}/search"),
    ("POST", "/api/v1/collections/{name}/search/batch"),
    ("POST", "/api/v1/probes/{name}/predict"),
}
KEYLESS = {"/healthz", "/readyz", "/favicon.ico"}


def routes(app) -> set[tuple[str, str]]:
    """(method, path) of all routes that clients can reach."""
    schema = {(m.upper(), path) for path, ops in app.openapi()["paths"].items() for m in ops}
    return schema | {(m, route.path) for route in app.routes if isinstance(route, APIRoute) for m in route.methods}


def test_every_route_of_the_app_needs_what_it_should(server):
    found = routes(server.app)
    assert len(found) > 15
    for method, path in found:
        scope = rule_of(method, re.sub(r"\{[^}]*\}", "x", path)).scope
        if path in KEYLESS:
            assert scope is None, path
        elif method == "GET":
            assert scope == "read", path
        else:
            asks = (method, re.sub(r"\{\w+\}", "{name}", path)) in READ_BY_BODY
            assert scope == ("read" if asks else "write"), (method, path)


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
        ("BREW", "/ui/x"),
    ):
        assert rule_of(method, path).scope == "write", path


def test_the_rates_leave_out_what_a_page_is_made_of():
    for path in ("/healthz", "/ui/assets/index.js", "/api/v1/collections/c/items/i/thumbnail", "/metrics", "/login"):
        assert not rule_of("GET", path).counted, path
    for path in ("/v1/models", "/api/v1/collections/c/items/i"):
        assert rule_of("GET", path).counted, path
    assert rule_of("POST", "/ui/gradio_api/queue/join").counted
