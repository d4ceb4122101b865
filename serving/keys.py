"""API keys: a name, a scope, and the SHA-256 of the secret.

    NNCLR_API_KEYS='["phone-app:9f3c..."]'              may read
    NNCLR_WRITE_KEYS='["ci:sha256:2bb80d53..."]'        may read and write; only its hash is in the environment
    NNCLR_KEYS_FILE=/run/secrets/keys                   lines of a scope and a key: `write ci:9f3c...`

Keys are secrets that a machine made: at least 16 characters, so that nobody can guess one and a plain
hash protects it. Whatever its spelling, a key is compared as its hash, with all keys, in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from nnclr_hub.errors import InvalidRequest

READ, WRITE = "read", "write"
SHORTEST = 16  # characters
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_SECRET = re.compile(r"[!-~]+")  # what an HTTP header can carry without quoting


@dataclass(frozen=True)
class Key:
    """Who holds a key, and what it allows.

    name: for logs and rates; tells nothing of the secret.
    scopes: ("read",) or ("read", "write").
    digest: SHA-256 of the secret.
    """

    name: str
    scopes: tuple[str, ...]
    digest: bytes


class Keys:
    """All keys of the server.

    Args:
        readers, writers: `secret`, `name:secret` or `name:sha256:HEX`.
        file: lines of a scope and a key; empty ones and those from # on are passed over.

    Raises:
        InvalidRequest: a key is no key, or a weak one; the sentence never holds it.
    """

    def __init__(
        self, readers: Iterable[SecretStr] = (), writers: Iterable[SecretStr] = (), file: Path | None = None
    ) -> None:
        given = [(READ, one.get_secret_value()) for one in readers]
        given += [(WRITE, one.get_secret_value()) for one in writers]
        given += [] if file is None else list(_lines(file))
        self._keys = tuple(_parse(text, scope, i + 1) for i, (scope, text) in enumerate(given))

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def find(self, secret: str) -> Key | None:
        """The key of a secret, or None."""
        return self.of_digest(hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest())

    def of_digest(self, digest: bytes) -> Key | None:
        """The key of a hash; one given for both scopes may write."""
        found: Key | None = None
        for key in self._keys:  # no early end: the time does not tell which key was near
            if hmac.compare_digest(key.digest, digest) and (found is None or WRITE in key.scopes):
                found = key
        return found


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    try:
        lines: Sequence[str] = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The file of keys {file} cannot be read ({type(error).__name__}): check it.") from error
    found = False
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] not in (READ, WRITE):
            raise InvalidRequest(f"Line {number} of {file} is not a scope and a key: write `read KEY` or `write KEY`.")
        found = True
        yield words[0], words[1]
    if not found:
        raise InvalidRequest(f"The file of keys {file} holds no key: write lines like `write ci:KEY`.")


def _parse(text: str, scope: str, number: int) -> Key:
    name, colon, secret = text.partition(":")
    if not colon or name == "sha256":
        name, secret = f"{scope}-{number}", text
    who = f"key {number} ({name!r:.70})" if colon and name != "sha256" else f"key {number}"
    if not _NAME.fullmatch(name):
        # not shown: a secret with a colon in it would be
        raise InvalidRequest(
            f"The name of key {number} is not possible: use 1 to 64 of the characters A-Z a-z 0-9 . _ -"
        )
    scopes = (READ, WRITE) if scope == WRITE else (READ,)
    if secret.startswith("sha256:"):
        hashed = _HASH.fullmatch(secret)
        if hashed is None:
            raise InvalidRequest(f"The hash of {who} is not 64 hexadecimal digits: take it from `sha256sum`.")
        return Key(name, scopes, bytes.fromhex(hashed[1]))
    if len(secret) < SHORTEST or len(set(secret)) < SHORTEST // 2:
        raise InvalidRequest(
            f"The secret of {who} is too easy to guess: give at least {SHORTEST} characters that a machine chose, for "
            "example from `openssl rand -hex 32`."
        )
    if not _SECRET.fullmatch(secret):
        raise InvalidRequest(f"The secret of {who} holds a blank or a letter beyond ASCII, which no header can carry.")
    return Key(name, scopes, hashlib.sha256(secret.encode()).digest())
