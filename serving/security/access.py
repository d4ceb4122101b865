"""Access to routes: the scope that a key needs, declared on each route.

    @router.post("/embed")
    @requires(READ)
    def embed(...): ...

    rules = AccessRules(ROUTERS)            # raises TypeError for a route without @requires
    rules.of("POST", "/api/v1/embed")       # Access(scope="read")

A path that no route matches needs READ for a safe method, else WRITE. So an unknown path is closed, not open.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams
from starlette.responses import Response

from nnclr_hub.errors import InvalidRequest

from ..keys import READ, WRITE
from ..problems import problem

APP = "/app"  # the files of the web app, whose page is at /
LOGIN, LOGOUT = "/login", "/logout"
SAFE = ("GET", "HEAD", "OPTIONS")

F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__access__"


@dataclass(frozen=True)
class Access:
    """What a request needs.

    scope: READ or WRITE, which the key must have; None: no key needed.
    streamed: whether the route writes the body to disk as it arrives, so that it may be large and take long.
    route: template of the path; "" outside of the API's routes.
    query: names of the query parameters; None: any.
    """

    scope: str | None
    streamed: bool = False
    route: str = ""
    query: tuple[str, ...] | None = None

    def check_query(self, text: bytes) -> None:
        """Check the query parameters, so that no misspelled one is ignored.

        Raises:
            InvalidRequest: a parameter is unknown, or is given twice.
        """
        if not text or self.query is None:
            return
        given = QueryParams(text)
        for name in given:
            if name not in self.query:
                expected = f"expected {', '.join(self.query)}" if self.query else "it has no parameters"
                raise InvalidRequest(f"This path has no query parameter {name!r:.100}; {expected}.")
            if len(given.getlist(name)) > 1:
                count = len(given.getlist(name))
                raise InvalidRequest(f"The query parameter {name} is given {count} times; give it once.")


UNKNOWN_SAFE, UNKNOWN = Access(READ), Access(WRITE)


def requires(scope: str | None, *, streamed: bool = False) -> Callable[[F], F]:
    """Declare what an endpoint needs; goes directly above its function.

    Args:
        scope: READ or WRITE; None: no key needed.
        streamed: whether the endpoint writes the body to disk as it arrives.
    """

    def mark(endpoint: F) -> F:
        setattr(endpoint, _ATTRIBUTE, Access(scope, streamed))
        return endpoint

    return mark


def access_of(route: APIRoute) -> Access:
    """Return what a route's endpoint declares.

    Raises:
        TypeError: the endpoint has no @requires.
    """
    access = getattr(route.endpoint, _ATTRIBUTE, None)
    if access is None:
        raise TypeError(f"Route {route.path} has no @requires: declare the scope that its endpoint needs.")
    return access


class AccessRules:
    """The declared access of all routes, found by method and path.

    Args:
        routers: all routers of the app, in the order in which it includes them.

    Raises:
        TypeError: a route has no @requires.
    """

    def __init__(self, routers: Iterable[APIRouter] = ()) -> None:
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        self._routes = [(route.methods or set(), route.path_regex, _access(route)) for route in routes]
        # most paths have no parameters; a dictionary saves trying all patterns
        fixed = [(methods, route.path) for (methods, *_), route in zip(self._routes, routes, strict=True)]
        self._fixed = {
            (one, path): self._match(one, path) for methods, path in fixed if "{" not in path for one in methods
        }

    def of(self, method: str, path: str) -> Access:
        """Return what a request needs; the method of a websocket is GET."""
        method_of_route = "GET" if method == "HEAD" else method
        return (
            self._fixed.get((method_of_route, path))
            or self._match(method_of_route, path)
            or _outside_routes(method, path)
        )

    def _match(self, method: str, path: str) -> Access | None:
        for methods, pattern, access in self._routes:
            if method in methods and pattern.fullmatch(path):
                return access
        return None


def _access(route: APIRoute) -> Access:
    query = _names(route.dependant) if route.include_in_schema else None
    return replace(access_of(route), route=route.path, query=query)


def _names(dependant: Dependant) -> tuple[str, ...]:
    """Return the query parameters of a route, including those of its dependencies."""
    own = [param.alias for param in dependant.query_params]
    return (*own, *(name for inner in dependant.dependencies for name in _names(inner)))


def _outside_routes(method: str, path: str) -> Access:
    """Return what a path needs that is not one of the API's routes: the login, the files of the web app, or unknown."""
    if path in (LOGIN, LOGOUT) and method in ("GET", "HEAD", "POST"):
        return Access(None)
    if re.fullmatch(f"{APP}(/.*)?", path) and method in ("GET", "HEAD"):  # its files hold no data; it asks for the key
        return Access(None)
    return UNKNOWN_SAFE if method in SAFE else UNKNOWN


@dataclass(frozen=True)
class Refusal:
    """Why a request is not accepted: status, stable code, message and extra headers of the error response."""

    status: int
    code: str
    detail: str
    headers: dict[str, str] = field(default_factory=dict)

    def response(self, path: str) -> Response:
        """Return the error response for a path."""
        status = 400 if self.status == 415 and path.startswith("/v1/") else self.status  # OpenAI does not use 415
        return problem(path, status, self.code, self.detail, headers=self.headers)
