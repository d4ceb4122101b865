"""Parameters that a path does not take are refused, as fields of a body are: no misspelled one is overlooked."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant

from nnclr_hub.errors import InvalidRequest


async def known_query(request: Request) -> None:
    """Raises InvalidRequest for a parameter that the route does not take, or that is given twice."""
    given = request.query_params
    if not given:
        return
    known = _names(request.scope["route"].dependant)
    for name in given:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InvalidRequest(f"The path has no parameter {name!r:.100}: {takes}.")
        if len(given.getlist(name)) > 1:
            raise InvalidRequest(f"The parameter {name} is given {len(given.getlist(name))} times: give it once.")


def _names(dependant: Dependant) -> list[str]:
    """Parameters of a route, also of what its own depend on."""
    own = [param.alias for param in dependant.query_params]
    return own + [name for inner in dependant.dependencies for name in _names(inner)]
