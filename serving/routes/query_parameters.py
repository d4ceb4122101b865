"""Refuse query parameters that a route does not have, so that no misspelled one is silently ignored."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant

from nnclr_hub.errors import InvalidRequest


async def known_query(request: Request) -> None:
    """Check the query parameters against those that the route declares.

    Raises:
        InvalidRequest: a parameter is unknown, or is given twice.
    """
    given = request.query_params
    if not given:
        return
    known = _names(request.scope["route"].dependant)
    for name in given:
        if name not in known:
            expected = f"expected {', '.join(known)}" if known else "it has no parameters"
            raise InvalidRequest(f"This path has no query parameter {name!r:.100}; {expected}.")
        if len(given.getlist(name)) > 1:
            raise InvalidRequest(f"The query parameter {name} is given {len(given.getlist(name))} times; give it once.")


def _names(dependant: Dependant) -> list[str]:
    """Return the parameters of a route, including those of its dependencies."""
    own = [param.alias for param in dependant.query_params]
    return own + [name for inner in dependant.dependencies for name in _names(inner)]
