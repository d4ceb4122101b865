"""The key of a request, from its Authorization header or from the session that a login started.

A session is starlette's: a signed cookie, which does not reveal the key. Scripts cannot read it (HttpOnly), and
browsers send it only from our own pages (SameSite=Strict). Programs send their key instead.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import secrets
import time
from collections import Counter, OrderedDict
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from ..keys import READ, WRITE, Key, Keys
from .access import SAFE, Refusal

log = logging.getLogger(__name__)
WRONG_KEYS_PER_MINUTE = 20
ANYONE = Key("", (READ, WRITE), b"")  # every client of a server without keys
MAX_ENDED = 100_000  # ended sessions that are remembered


def caller_of(client: tuple[str, int] | None) -> str:
    """Return a name for a client's address; for IPv6 its /64 network, because one machine has 2^64 addresses."""
    return _name_of_address(client[0]) if client else "unknown"


@lru_cache(4096)
def _name_of_address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class Keyholders:
    """Find the key that a request was made with.

    An address that sends many wrong keys gets 429 for further wrong ones. A right key is always accepted: one
    misconfigured program does not lock out the other clients behind its address. Guessing stays hopeless, because
    keys are long.

    Args:
        keys: all keys; if empty, everyone may read and write.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._by_session = {_session_name(key): key for key in keys}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._wrong: Counter[str] = Counter()  # by address, in this minute
        self._minute = 0

    def __bool__(self) -> bool:
        return len(self._keys) > 0

    def of_request(self, scope: Scope, headers: Headers, address: str) -> Key | Refusal:
        """Return the key of a request, or why it has none."""
        if not self:
            return ANYONE
        values = headers.getlist("authorization")
        if values:
            kind, _, secret = values[0].partition(" ")
            if len(values) == 1 and kind.lower() == "bearer":
                return self.of_secret(secret.strip(), address)
        elif _may_use_cookie(scope, headers) and (key := self.of_session(scope["session"])) is not None:
            return key
        return _unauthorized("This server requires a key; send the header Authorization: Bearer KEY.")

    def of_secret(self, secret: str, address: str) -> Key | Refusal:
        """Return the key of a secret, or why it is refused."""
        key = self._keys.of_digest(hashlib.sha256(secret.encode()).digest())
        if key is not None:
            return key
        if (minute := int(time.monotonic() // 60)) != self._minute:
            self._minute = minute
            self._wrong.clear()
        self._wrong[address] += 1
        if self._wrong[address] > WRONG_KEYS_PER_MINUTE:
            detail = "Too many wrong keys from this address; check the key and try again in a minute."
            return Refusal(429, "too_many_wrong_keys", detail, {"Retry-After": "60"})
        log.warning("wrong key from %s", address)
        return _unauthorized("This key is not valid for this server; check it.")

    def of_session(self, session: dict[str, Any]) -> Key | None:
        """Return the key of a session, or None."""
        if session.get("id") in self._ended:
            return None
        return self._by_session.get(str(session.get("key")))

    def begin(self, session: dict[str, Any], key: Key) -> None:
        """Start a session. Its cookie names the key by a hash, so that each replica accepts it."""
        session.update(key=_session_name(key), id=secrets.token_hex(16))

    def end(self, session: dict[str, Any]) -> None:
        """End a session. Other servers with this secret accept a copy of its cookie until it expires."""
        if "id" in session:
            self._ended[session["id"]] = None
        while len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        session.clear()


def _session_name(key: Key) -> str:
    return hashlib.sha256(b"session of " + key.digest).hexdigest()


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
