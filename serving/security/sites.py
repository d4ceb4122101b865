"""Which names we answer to, and which pages may talk to us.

A browser carries requests of any page to any address, also to one on its own machine, so:

- the Host header must be a name of ours, or a page elsewhere could point a name of its own at us and
  read what we answer (DNS rebinding);
- what changes something must come from our own origin, or from one that the settings list;
- a browser that says where a request comes from (Sec-Fetch-Site) is believed when it says "elsewhere".

Programs send neither Origin nor Sec-Fetch-Site, and are not concerned.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from .access import SAFE
from .refusal import Refusal

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+?)[.]?(?::(\d{1,5}))?")
_PORTS = {"http": "80", "https": "443"}


class Sites:
    """Checks Host, Origin and Sec-Fetch-Site; answers what browsers ask before they write (CORS).

    Args:
        hosts: names that the Host header may have; None: any.
        literals: whether an IP address will do as well: no page can rebind one.
        origins: of pages elsewhere that may use the API, as `https://example.com`.
    """

    def __init__(self, hosts: Iterable[str] | None, *, literals: bool = False, origins: Iterable[str] = ()) -> None:
        self._hosts = None if hosts is None else {name.lower() for name in hosts}
        self._literals = literals
        self._origins = frozenset(origins)

    def refusal(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Why the request may not come in, if so."""
        given = headers.getlist("host")
        host = _HOST.fullmatch(given[0].lower()) if len(given) == 1 else None
        if self._hosts is not None and not (host and self._is_ours(host[1])):
            return Refusal(
                403,
                "host_not_allowed",
                f"The host {', '.join(given)!r:.100} is not one of this server's: its operator can add it to "
                "NNCLR_ALLOWED_HOSTS.",
            )
        if self.cors(headers) is not None:
            return None
        origin = headers.get("origin")
        writes = scope["type"] == "websocket" or scope["method"] not in SAFE
        own = host is not None and origin is not None and _is_own(origin, host)
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        followed = not writes and headers.get("sec-fetch-mode") == "navigate"  # a link to us
        if (writes and origin is not None and not own) or (elsewhere and not own and not followed):
            return Refusal(
                403,
                "origin_not_allowed",
                f"A page of {origin or 'another site'!r:.100} may not do this here: the operator of this server can "
                "add its origin to NNCLR_CORS_ORIGINS.",
            )
        return None

    def cors(self, headers: Headers) -> str | None:
        """The origin of a page elsewhere that may use the API."""
        origin = headers.get("origin")
        return origin if origin in self._origins else None

    def _is_ours(self, name: str) -> bool:
        return self._hosts is not None and (name in self._hosts or (self._literals and _is_literal(name)))


def own_names(host: str, allowed: Iterable[str]) -> set[str]:
    """What the Host header may be where no keys protect: this machine's names, and those that are allowed."""
    return {host, f"[{host}]", socket.gethostname(), *LOCAL_NAMES, *allowed}


def _is_literal(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: re.Match[str]) -> bool:
    """Whether an origin is the one that the Host header names; the scheme is not known behind a proxy."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    there = _HOST.fullmatch(parts.netloc)
    if there is None or parts.scheme not in _PORTS:
        return False
    default = _PORTS[parts.scheme]
    return (there[1], there[2] or default) == (host[1], host[2] or default)
