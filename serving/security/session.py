"""Sessions of the page: a form takes a key once, and a cookie represents it afterwards.

The cookie is a random token; the key that it represents is kept here, until the session expires or the user logs
out. Scripts cannot read the cookie (HttpOnly), and browsers send it only from our own pages (SameSite=Strict).
A session can read, but not write through the API; programs send their key instead.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers

from ..keys import Key

MAX_SESSIONS = 10_000  # the oldest is ended above that
_NAME = "nnclr_session"
_SECURE_NAME = f"__Host-{_NAME}"  # browsers accept it only over HTTPS and for exactly this host


class Sessions:
    """The open sessions.

    Args:
        seconds: lifetime of a session.
        clock: returns seconds; tests replace it.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[Key, float]] = OrderedDict()  # hash of the token -> key, end

    def begin(self, key: Key, *, secure: bool) -> str:
        """Start a session and return its Set-Cookie header."""
        token = secrets.token_urlsafe(32)
        self._open[_hash(token)] = (key, self._clock() + self._seconds)
        while len(self._open) > MAX_SESSIONS:
            self._open.popitem(last=False)
        return _cookie(token, int(self._seconds), secure)

    def key(self, headers: Headers) -> Key | None:
        """Return the key of the request's session, or None if it has none or it expired."""
        for token in _tokens(headers):
            key, end = self._open.get(_hash(token), (None, 0.0))
            if key is not None and self._clock() < end:
                return key
        return None

    def end(self, headers: Headers, *, secure: bool) -> str:
        """End the request's session and return the Set-Cookie header that removes the cookie."""
        for token in _tokens(headers):
            self._open.pop(_hash(token), None)
        return _cookie("", 0, secure)


def _tokens(headers: Headers) -> list[str]:
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return []
    return [cookies[name].value for name in (_SECURE_NAME, _NAME) if name in cookies]


def _hash(token: str) -> bytes:
    """Hash a token for the lookup, so that the lookup time reveals nothing about existing tokens."""
    return hashlib.sha256(token.encode()).digest()


def _cookie(token: str, seconds: int, secure: bool) -> str:
    name = _SECURE_NAME if secure else _NAME
    return f"{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
