"""Who asks: the key of a request, from its Authorization header or from the session of its cookie."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict

from starlette.datastructures import Headers
from starlette.types import Scope

from ..keys import READ, WRITE, Key, Keys
from .access import PAGE, SAFE
from .rates import REMEMBERED, Buckets
from .refusal import Refusal
from .session import Sessions

log = logging.getLogger(__name__)
WRONG_KEYS_A_MINUTE = 20
EVERYBODY = Key("", (READ, WRITE), b"")  # where there are no keys


class Callers:
    """Finds the key that a request was made with.

    An address that sends wrong keys is soon answered 429 without a look at its key, but keys that have worked
    from there go on working: one confused program must not shut out its whole office.

    Args:
        keys: all keys; none: everybody may read and write.
        sessions: of the page.
    """

    def __init__(self, keys: Keys, sessions: Sessions) -> None:
        self._keys = keys
        self._sessions = sessions
        self._wrong = Buckets(WRONG_KEYS_A_MINUTE)
        self._worked: OrderedDict[tuple[str, bytes], None] = OrderedDict()  # (address, hash of the key)

    @property
    def needed(self) -> bool:
        """Whether one needs a key here."""
        return len(self._keys) > 0

    def of_request(self, scope: Scope, headers: Headers, address: str) -> Key | Refusal:
        """The key of a request, or why it has none."""
        if not self.needed:
            return EVERYBODY
        given = headers.getlist("authorization")
        if given:
            kind, _, secret = given[0].partition(" ")
            if len(given) == 1 and kind.lower() == "bearer":
                return self.of_secret(secret.strip(), address)
        elif _may_use_cookie(scope, headers):
            key = self._sessions.key(headers)
            if key is not None:
                return key
        return _unauthorized("This server needs a key: send the header Authorization: Bearer KEY.")

    def of_secret(self, secret: str, address: str) -> Key | Refusal:
        """The key of a secret, or why it is none."""
        digest = hashlib.sha256(secret.encode()).digest()
        if (address, digest) not in self._worked and self._wrong.left(address) < 1:
            wait = math.ceil(60 / WRONG_KEYS_A_MINUTE)
            detail = f"Too many wrong keys came from this address: wait {wait} s, and check the key."
            return Refusal(429, "too_many_wrong_keys", detail, {"Retry-After": str(wait)})
        key = self._keys.of_digest(digest)
        if key is None:
            self._wrong.take(address)
            log.warning("a wrong key from %s", address)
            return _unauthorized("This key is not one of this server's: check it.")
        self._worked[address, digest] = None
        self._worked.move_to_end((address, digest))
        while len(self._worked) > REMEMBERED:
            self._worked.popitem(last=False)
        return key


def _may_use_cookie(scope: Scope, headers: Headers) -> bool:
    """A session opens the page and what the page shows; it never writes through the API.

    A browser that says where the request comes from must say: from our own page, or from the person.
    """
    ours = scope["path"].startswith(f"{PAGE}/") or (scope["type"] == "http" and scope["method"] in SAFE)
    return ours and headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def _unauthorized(detail: str) -> Refusal:
    return Refusal(401, "unauthorized", detail, {"WWW-Authenticate": 'Bearer realm="nnclr_hub"'})
