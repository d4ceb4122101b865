"""Find the key of a request, in its Authorization header or in the session of its cookie.

The login takes a key once, and starts a session. Its cookie is a signed token, which does not reveal the key. Scripts
cannot read the cookie (HttpOnly), and browsers send it only from our own pages (SameSite=Strict). Programs send their
key instead.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import math
import secrets
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from ..keys import READ, WRITE, Key, Keys
from .access import SAFE, Refusal

log = logging.getLogger(__name__)
WRONG_KEYS_PER_MINUTE = 20
ANYONE = Key("", (READ, WRITE), b"")  # every client of a server without keys
MAX_ENDED = 100_000  # ended sessions that are remembered
_NONCE, _SIGNATURE = 16, 32  # bytes
_TOKEN = _NONCE + 8 + 2 * _SIGNATURE
_NAME = "nnclr_session"
_SECURE_NAME = f"__Host-{_NAME}"  # browsers accept it only over HTTPS and for exactly this host
REMEMBERED = 10_000  # callers; the one that called least recently is forgotten, and starts with a full bucket


class TokenBuckets:
    """Token buckets, one per caller, for request rates and for wrong keys.

    A bucket holds a minute's worth of tokens and fills at an even rate.

    Args:
        per_minute: tokens added per minute; 0 means no limit.
        size: capacity of a bucket, at least `per_minute`.
        clock: returns seconds; tests replace it.
    """

    def __init__(self, per_minute: int, size: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = max(per_minute, size)
        self._per_second = per_minute / 60
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # caller -> tokens, time

    def __len__(self) -> int:
        return len(self._left)

    @property
    def enabled(self) -> bool:
        return self._per_second > 0

    def left(self, caller: str) -> float:
        """Return the tokens in the caller's bucket now."""
        tokens, when = self._left.get(caller, (self.size, self._clock()))
        return min(self.size, tokens + (self._clock() - when) * self._per_second)

    def take(self, caller: str, count: float = 1) -> float:
        """Take tokens if there are enough, and return 0; otherwise return the seconds until there are."""
        if not self.enabled:
            return 0.0
        left, count = self.left(caller), min(count, self.size)  # a bucket never holds more than its size
        if left < count:
            return (count - left) / self._per_second
        self._left[caller] = (left - count, self._clock())
        self._left.move_to_end(caller)
        while len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return 0.0

    def headers(self, caller: str, what: str) -> dict[str, str]:
        """Return OpenAI's rate headers for a caller; none if there is no limit."""
        if not self.enabled:
            return {}
        left = self.left(caller)
        return {
            f"x-ratelimit-limit-{what}": str(self.size),
            f"x-ratelimit-remaining-{what}": str(int(left)),
            f"x-ratelimit-reset-{what}": f"{math.ceil((self.size - left) / self._per_second)}s",
        }


def caller_of(client: tuple[str, int] | None) -> str:
    """Return a name for a client's address; for IPv6 its /64 network, because one machine has 2^64 addresses."""
    return _name_of_address(client[0]) if client else "unknown"


@lru_cache(4096)
def _name_of_address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        address = None
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address or "unknown")


class Sessions:
    """The sessions of browsers: tokens that this server, or one with the same secret, has signed.

    A token names its key by a hash, and has an end. It is not stored, so that each replica accepts the tokens of the
    others. A session that was ended is refused by the server that ended it; others accept a copy of its token until
    its end.

    Args:
        seconds: lifetime of a session.
        keys: of the server.
        secret: signs the tokens.
        clock: returns seconds since 1970; tests replace it.
    """

    def __init__(self, seconds: float, keys: Keys, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._seconds = seconds
        self._secret = secret
        self._clock = clock
        self._keys = {self._sign(key.digest): key for key in keys}
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def begin(self, key: Key, *, secure: bool) -> str:
        """Start a session and return its Set-Cookie header."""
        end = struct.pack("<d", self._clock() + self._seconds)
        signed = secrets.token_bytes(_NONCE) + end + self._sign(key.digest)
        token = base64.urlsafe_b64encode(signed + self._sign(signed)).decode()
        return _cookie(token, int(self._seconds), secure)

    def key(self, headers: Headers) -> Key | None:
        """Return the key of the request's session, or None if it has none or it has ended."""
        for token in _tokens(headers):
            signed = self._verified(token)
            if signed is None or signed[:_NONCE] in self._ended:
                continue
            [end] = struct.unpack("<d", signed[_NONCE : _NONCE + 8])
            if self._clock() < end:
                return self._keys.get(signed[_NONCE + 8 :])
        return None

    def end(self, headers: Headers, *, secure: bool) -> str:
        """End the request's session and return the Set-Cookie header that removes the cookie."""
        for token in _tokens(headers):
            signed = self._verified(token)
            if signed is not None:
                self._ended[signed[:_NONCE]] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        return _cookie("", 0, secure)

    def _sign(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, "sha256")

    def _verified(self, token: str) -> bytes | None:
        """Return the signed part of a token, or None if it is not one of ours."""
        try:
            data = base64.b64decode(token, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        signed, signature = data[:-_SIGNATURE], data[-_SIGNATURE:]
        return signed if len(data) == _TOKEN and hmac.compare_digest(self._sign(signed), signature) else None


def _tokens(headers: Headers) -> list[str]:
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return []
    return [cookies[name].value for name in (_SECURE_NAME, _NAME) if name in cookies]


def _cookie(token: str, seconds: int, secure: bool) -> str:
    name = _SECURE_NAME if secure else _NAME
    return f"{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")


class Authenticator:
    """Find the key that a request was made with.

    An address that sends many wrong keys gets 429 for further wrong ones. A right key is always accepted: one
    misconfigured program does not lock out the other clients behind its address. Guessing stays hopeless, because
    keys are long.

    required: whether requests need a key.

    Args:
        keys: all keys; if empty, everyone may read and write.
        sessions: the signed-in browsers.
    """

    def __init__(self, keys: Keys, sessions: Sessions) -> None:
        self._keys = keys
        self.required = len(keys) > 0
        self._sessions = sessions
        self._wrong = TokenBuckets(WRONG_KEYS_PER_MINUTE)

    def of_request(self, scope: Scope, headers: Headers, address: str) -> Key | Refusal:
        """Return the key of a request, or why it has none."""
        if not self.required:
            return ANYONE
        values = headers.getlist("authorization")
        if values:
            kind, _, secret = values[0].partition(" ")
            if len(values) == 1 and kind.lower() == "bearer":
                return self.of_secret(secret.strip(), address)
        elif _may_use_cookie(scope, headers):
            key = self._sessions.key(headers)
            if key is not None:
                return key
        return _unauthorized("This server requires a key; send the header Authorization: Bearer KEY.")

    def of_secret(self, secret: str, address: str) -> Key | Refusal:
        """Return the key of a secret, or why it is refused."""
        key = self._keys.of_digest(hashlib.sha256(secret.encode()).digest())
        if key is not None:
            return key
        if self._wrong.take(address) > 0:
            wait = math.ceil(60 / WRONG_KEYS_PER_MINUTE)
            detail = f"Too many wrong keys from this address; check the key and try again in {wait} s."
            return Refusal(429, "too_many_wrong_keys", detail, {"Retry-After": str(wait)})
        log.warning("wrong key from %s", address)
        return _unauthorized("This key is not valid for this server; check it.")


def _may_use_cookie(scope: Scope, headers: Headers) -> bool:
    """Return whether a session is enough: for a request of a page of this server, or a read that the user typed.

    A browser says with each request that may write which page sends it (`Origin`), and to trustworthy addresses also
    how near that page is (`Sec-Fetch-Site`). A page on another port of this host is not ours.
    """
    site = headers.get("sec-fetch-site")
    if scope["type"] == "http" and scope["method"] in SAFE:
        return site in (None, "same-origin", "none")
    own = urlsplit(headers.get("origin", "")).netloc == headers.get("host")
    return scope["type"] == "http" and own and site in (None, "same-origin")


def _unauthorized(detail: str) -> Refusal:
    return Refusal(401, "unauthorized", detail, {"WWW-Authenticate": 'Bearer realm="nnclr_hub"'})
