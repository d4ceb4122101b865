"""The root of the library's errors, and the one of no room."""

from __future__ import annotations

from typing import ClassVar


class NNCLRHubError(Exception):
    """The root of the library's errors."""

    code: ClassVar[str] = "error"


class MissingDependency(NNCLRHubError):
    """An optional package is not installed; the message names the extra that brings it."""

    code = "missing_dependency"
