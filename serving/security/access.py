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
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams

from nnclr_hub.errors import InvalidRequest

from ..keys import READ, WRITE

APP = "/app"  # the files of the web app, whose page is at /
LOGIN, LOGOUT = "/login", "/logout"
SAFE = ("GET", "HEAD", "OPTIONS")
LONG = 256  # characters of a path that is not remembered

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
        """Raise InvalidRequest for a query parameter that is unknown or given twice. No misspelled one is ignored."""
        if not text or self.query is None:
            return
        given = QueryParams(text)
        for name in given:
            if name not in self.query:
                expected = f"expected {', '.join(self.query)}" if self.query else "it has no parameters"
                raise InvalidRequest(f"This path has no query parameter {name!r:.100}; {expected}.")
            if (count := len(given.getlist(name))) > 1:
                raise InvalidRequest(f"The query parameter {name} is given {count} times; give it once.")


def requires(scope: str | None, *, streamed: bool = False) -> Callable[[F], F]:
    """Declare what an endpoint needs, see `Access`; goes directly above its function."""

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
    query = _query_names(route.dependant) if route.include_in_schema else None
    return replace(access, route=route.path, query=query)


class AccessRules:
    """The declared access of all routes, found by method and path.

    Args:
        routers: all routers of the app, in the order in which it includes them.

    Raises:
        TypeError: a route has no @requires.
    """

    def __init__(self, routers: Iterable[APIRouter] = ()) -> None:
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        self._routes = [(route.methods or set(), route.path_regex, access_of(route)) for route in routes]
        self._recent = lru_cache(1024)(self._find)  # most paths have no parameters, and repeat

    def of(self, method: str, path: str) -> Access:
        """Return what a request needs."""
        return self._recent(method, path) if len(path) < LONG else self._find(method, path)

    def _find(self, method: str, path: str) -> Access:
        method_of_route = "GET" if method == "HEAD" else method
        for methods, pattern, access in self._routes:
            if method_of_route in methods and pattern.fullmatch(path):
                return access
        # the files of the web app hold no data; its scripts send the key
        public = path in (LOGIN, LOGOUT) or (method != "POST" and re.fullmatch(f"{APP}(/.*)?", path))
        if public and method in ("GET", "HEAD", "POST"):
            return Access(None)
        return Access(READ if method in SAFE else WRITE)


def _query_names(dependant: Dependant) -> tuple[str, ...]:
    """Return the query parameters of a route, including those of its dependencies."""
    own = [param.alias for param in dependant.query_params]
    return (*own, *(name for inner in dependant.dependencies for name in _query_names(inner)))
