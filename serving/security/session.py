"""The page's login: a form that takes a key once, and a cookie that stands for it afterwards.

The cookie is a random token that says nothing; what it stands for is kept here, until it expires or the
person logs out. Scripts cannot read it (HttpOnly), and a browser sends it along from our own pages alone
(SameSite=Strict). It opens the page and what the page shows; programs send their key.
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

KEPT = 10_000  # sessions; the oldest gives way
_NAME = "nnclr_session"
_SECURE_NAME = f"__Host-{_NAME}"  # browsers take it from HTTPS alone, for this very host


class Sessions:
    """Who is logged in.

    Args:
        seconds: that a session lasts.
        clock: seconds, for tests.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._open: OrderedDict[bytes, tuple[Key, float]] = OrderedDict()  # hash of the token -> key, end

    def begin(self, key: Key, *, secure: bool) -> str:
        """A new session's Set-Cookie header."""
        token = secrets.token_urlsafe(32)
        self._open[_hash(token)] = (key, self._clock() + self._seconds)
        while len(self._open) > KEPT:
            self._open.popitem(last=False)
        return _cookie(token, int(self._seconds), secure)

    def key(self, headers: Headers) -> Key | None:
        """The key of the request's session, if it has one that is not over."""
        for token in _tokens(headers):
            key, end = self._open.get(_hash(token), (None, 0.0))
            if key is not None and self._clock() < end:
                return key
        return None

    def end(self, headers: Headers, *, secure: bool) -> str:
        """Ends the request's session; the Set-Cookie header that takes the cookie away."""
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
    """Looked up by its hash, so that the time of the look-up tells nothing of the tokens that are there."""
    return hashlib.sha256(token.encode()).digest()


def _cookie(token: str, seconds: int, secure: bool) -> str:
    name = _SECURE_NAME if secure else _NAME
    return f"{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
