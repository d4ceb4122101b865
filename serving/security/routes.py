"""What each route needs: the one table that says so.

The first rule that a request matches decides. Reading by GET needs the scope to read; what no rule knows
needs the scope to write, so that a route which is added without a thought is shut rather than open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..keys import READ, WRITE

PAGE = "/ui"
LIVENESS = "/healthz"
LOGIN, LOGOUT = "/login", "/logout"
SAFE = ("GET", "HEAD", "OPTIONS")
_C = "/api/v1/collections/[^/]+"


@dataclass(frozen=True)
class Rule:
    """A row of the table.

    methods: HTTP methods; none: all.
    path: regular expression for the whole decoded path, as the router sees it.
    scope: that the key must have; None: no key needed.
    counted: whether the request counts against the rate of its key.
    """

    methods: tuple[str, ...]
    path: str
    scope: str | None
    counted: bool = True

    def matches(self, method: str, path: str) -> bool:
        return (not self.methods or method in self.methods) and re.fullmatch(self.path, path) is not None


TABLE = (
    # probes of an orchestrator have no key
    Rule(("GET", "HEAD"), f"{LIVENESS}|/readyz|/favicon[.]ico", None, counted=False),
    Rule(("GET", "HEAD", "POST"), f"{LOGIN}|{LOGOUT}", None, counted=False),
    # the page's events are POSTs that do no more than reading does; one that writes asks for the scope itself
    Rule(("POST",), f"{PAGE}/.*", READ),
    Rule(("GET", "HEAD"), f"/|{PAGE}|{PAGE}/.*", READ, counted=False),
    # a wall of images is a hundred requests, and cheap
    Rule(("GET", "HEAD"), f"{_C}/items/[^/]+/thumbnail", READ, counted=False),
    Rule(("GET", "HEAD"), "/metrics", READ, counted=False),
    Rule(SAFE, "(?s:.*)", READ),
    # what is asked in a body, but changes nothing
    Rule(("POST",), "/v1/embeddings|/api/v1/embed|/api/v1/attention", READ),
    Rule(("POST",), f"{_C}/search(/batch)?", READ),
    Rule(("POST",), "/api/v1/probes/[^/]+/predict", READ),
)
REST = Rule((), "(?s:.*)", WRITE)


def rule_of(method: str, path: str) -> Rule:
    """The rule for a request; a websocket's method is GET."""
    return next((rule for rule in TABLE if rule.matches(method, path)), REST)
