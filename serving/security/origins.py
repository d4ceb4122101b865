"""Protection against other web pages in the user's browser.

A browser sends requests of any page to any address, including servers on its own machine. Therefore:

- the Host header must be one of our names. Otherwise another site could point its name at us and read our
  responses (DNS rebinding);
- writes must come from our own origin, or from one that the settings list;
- requests that the browser labels as cross-site (Sec-Fetch-Site) are refused.

Programs send neither Origin nor Sec-Fetch-Site and are not affected. Starlette's TrustedHostMiddleware answers without
a code, takes the first of two Host headers, and cannot allow IP addresses alone.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from ..problems import Refused
from ..settings import Settings, is_loopback
from .access import SAFE

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+?)[.]?(?::(\d{1,5}))?")
_PORTS = {"http": "80", "https": "443"}


class OriginPolicy:
    """Check Host, Origin and Sec-Fetch-Site against the settings host, allowed_hosts, keys and cors_origins."""

    def __init__(self, settings: Settings) -> None:
        local = is_loopback(settings.host)
        # a public server cannot know all of its names, and a page that rebinds one of them has no key
        self._checked = local or bool(settings.allowed_hosts) or not settings.has_keys
        own = (settings.host, f"[{settings.host}]", socket.gethostname(), *LOCAL_NAMES, *settings.allowed_hosts)
        self._hosts = {name.lower() for name in own}
        self._literals = not local  # no page can rebind an IP address
        self._listed = frozenset(settings.cors_origins)

    def lists(self, headers: Headers) -> bool:
        """Return whether the settings allow the request's origin to use the API."""
        return headers.get("origin") in self._listed

    def check(self, method: str, headers: Headers) -> None:
        """Raise Refused for a request of another page, or to a name that is not ours."""
        values = headers.getlist("host")
        host = _HOST.fullmatch(values[0].lower()) if len(values) == 1 else None
        if self._checked and not (host and self._is_allowed(host[1])):
            raise Refused(
                "host_not_allowed",
                f"The host {', '.join(values)!r:.100} is not allowed; the operator of this server can add it to "
                "NNCLR_ALLOWED_HOSTS.",
            )
        if self.lists(headers):
            return
        origin, writes = headers.get("origin"), method not in SAFE
        own = host is not None and origin is not None and _is_own(origin, host)
        cross_site = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        followed_link = not writes and headers.get("sec-fetch-mode") == "navigate"
        if (writes and origin is not None and not own) or (cross_site and not own and not followed_link):
            raise Refused(
                "origin_not_allowed",
                f"Pages of {origin or 'another site'!r:.100} may not use this server; its operator can add the origin "
                "to NNCLR_CORS_ORIGINS.",
            )

    def _is_allowed(self, name: str) -> bool:
        if name in self._hosts:
            return True
        try:
            return self._literals and bool(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            return False


def _is_own(origin: str, host: re.Match[str]) -> bool:
    """Return whether the origin matches the Host header. Behind a proxy the scheme is unknown, so it is ignored."""
    try:
        parts = urlsplit(origin.lower())
    except ValueError:
        return False
    named = _HOST.fullmatch(parts.netloc)
    if named is None or parts.scheme not in _PORTS:
        return False
    default = _PORTS[parts.scheme]
    return (named[1], named[2] or default) == (host[1], host[2] or default)
