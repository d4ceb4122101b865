"""API keys: a name, a scope, and the SHA-256 of the secret.

    NNCLR_API_KEYS='["phone-app:9f3c..."]'              may read
    NNCLR_WRITE_KEYS='["ci:sha256:2bb80d53..."]'        may read and write; the environment has only its hash
    NNCLR_KEYS_FILE=/run/secrets/keys                   lines of a scope and a key: `write ci:9f3c...`

Secrets are machine-made and have at least 16 characters, so they cannot be guessed and a plain hash protects them.
Keys are compared as hashes, with all keys, in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from nnclr_hub.errors import InvalidRequest

READ, WRITE = "read", "write"
MIN_LENGTH = 16  # characters of a secret
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_SECRET = re.compile(r"[!-~]+")  # what an HTTP header can carry without quoting


@dataclass(frozen=True)
class Key:
    """A key and what it allows.

    name: shown in logs and used for rates; reveals nothing about the secret.
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
        file: lines of a scope and a key; empty lines and comments (#) are ignored.

    Raises:
        InvalidRequest: a key is malformed or too weak. The message never contains it.
    """

    def __init__(
        self, readers: Iterable[SecretStr] = (), writers: Iterable[SecretStr] = (), file: Path | None = None
    ) -> None:
        pairs = [(READ, one.get_secret_value()) for one in readers]
        pairs += [(WRITE, one.get_secret_value()) for one in writers]
        pairs += [] if file is None else list(_read_lines(file))
        self._keys = tuple(_parse(text, scope, i + 1) for i, (scope, text) in enumerate(pairs))

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def find(self, secret: str) -> Key | None:
        """Return the key of a secret, or None. A secret that has both scopes may write."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        found: Key | None = None
        for key in self._keys:  # no early exit: the time must not reveal which key was similar
            if hmac.compare_digest(key.digest, digest) and (found is None or WRITE in key.scopes):
                found = key
        return found


def create_keys_file(file: Path) -> str | None:
    """Write a file with one new key that may read and write, readable by its owner only.

    Returns:
        The key, which is not shown again; None if the file exists already.
    """
    key = secrets.token_urlsafe(32)
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return None
    except OSError as error:
        raise InvalidRequest(
            f"Cannot create the keys file {file} ({error.strerror}); choose a folder that this user may write to."
        ) from error
    with os.fdopen(handle, "w") as out:
        out.write(f"write first:{key}\n")
        out.flush()
        os.fsync(out.fileno())
    return key


def _read_lines(file: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = [line.partition("#")[0].split() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"Cannot read the keys file {file} ({type(error).__name__}).") from error
    if not any(lines):
        raise InvalidRequest(f"The keys file {file} contains no keys; add lines like `write ci:KEY`.")
    for number, words in enumerate(lines, 1):
        if words and (len(words) != 2 or words[0] not in (READ, WRITE)):
            raise InvalidRequest(f"Line {number} of {file} is invalid; expected `read KEY` or `write KEY`.")
        if words:
            yield words[0], words[1]


def _parse(text: str, scope: str, number: int) -> Key:
    name, colon, secret = text.partition(":")
    if not colon or name == "sha256":
        name, secret = f"{scope}-{number}", text
    label = f"key {number} ({name!r:.70})" if colon and name != "sha256" else f"key {number}"
    if not _NAME.fullmatch(name):
        # the name is not shown, because it may be part of a secret that contains a colon
        raise InvalidRequest(f"The name of key {number} is invalid; use 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    scopes = (READ, WRITE) if scope == WRITE else (READ,)
    if secret.startswith("sha256:"):
        hashed = _HASH.fullmatch(secret)
        if hashed is None:
            raise InvalidRequest(f"The hash of {label} is not 64 hexadecimal digits; create it with `sha256sum`.")
        return Key(name, scopes, bytes.fromhex(hashed[1]))
    if len(secret) < MIN_LENGTH or len(set(secret)) < MIN_LENGTH // 2:
        raise InvalidRequest(
            f"The secret of {label} is too easy to guess; use at least {MIN_LENGTH} random characters, for example "
            "from `openssl rand -hex 32`."
        )
    if not _SECRET.fullmatch(secret):
        raise InvalidRequest(f"The secret of {label} contains a space or a non-ASCII character; HTTP headers cannot.")
    return Key(name, scopes, hashlib.sha256(secret.encode()).digest())
