"""Refusal: why a request is not accepted."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.responses import Response

from ..problems import problem


@dataclass(frozen=True)
class Refusal:
    """The status, stable code, message and extra headers of an error response."""

    status: int
    code: str
    detail: str
    headers: dict[str, str] = field(default_factory=dict)

    def response(self, path: str) -> Response:
        """Return the error response for a path."""
        status = 400 if self.status == 415 and path.startswith("/v1/") else self.status  # OpenAI does not use 415
        return problem(path, status, self.code, self.detail, headers=self.headers)
