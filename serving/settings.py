"""Settings of the server, from NNCLR_* environment variables; the command line's flags come first."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from nnclr_hub.errors import InvalidRequest

from .keys import WRITE, Keys

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(KB|MB|GB)\s*", re.IGNORECASE)


class Settings(BaseSettings):
    """See the fields."""

    model_config = SettingsConfigDict(env_prefix="NNCLR_", extra="ignore")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
    backend: str = Field("auto", description="what runs the networks, as in `nnclr embed --backend`")
    max_batch: int = Field(32, ge=1, description="images a forward pass")
    max_wait_ms: float = Field(2.0, ge=0, description="milliseconds a busy device gives a batch to fill")
    decode_threads: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, description="threads that decode images; a core each"
    )
    capacity: int = Field(512, ge=1, description="images in work at once; above, 429")
    capacity_bytes: int = Field(256_000_000, ge=1, description="bytes of images in work at once; above, 429")
    deadline_s: float = Field(30.0, gt=0, description="seconds after which a request is given up")
    stall_s: float = Field(60.0, gt=0, description="seconds a thread may be at one thing before it is replaced")
    model_memory: int | None = Field(
        None, ge=1, description="bytes of weights in memory, or 4GB; above, idle models go"
    )
    attention_side: int = Field(1024, ge=224, description="pixels of the long side that attention is given at most")
    max_images: int = Field(64, ge=1, description="images a request")
    max_bytes: int = Field(20_000_000, ge=1, description="bytes of a request's body")
    bodies_bytes: int = Field(512_000_000, ge=1, description="bytes of bodies in memory at once; above, 429")
    connections: int = Field(512, ge=1, description="connections at once; above, 503")
    body_idle_s: float = Field(20.0, gt=0, description="seconds that a client may be silent within a body")
    body_s: float = Field(120.0, gt=0, description="seconds in which a body must be here")
    api_keys: tuple[SecretStr, ...] = Field((), description='keys that may read, as JSON: ["name:secret"]')
    write_keys: tuple[SecretStr, ...] = Field((), description="keys that may read and write, as JSON")
    keys_file: Path | None = Field(None, description="file of keys, a line each: read KEY or write KEY")
    read_only: bool = Field(False, description="show what is there, and answer every write with 403")
    insecure: bool = Field(False, description="serve on other addresses than this machine's without keys")
    session_hours: float = Field(12.0, gt=0, description="hours that a login to the page lasts")
    allowed_hosts: tuple[str, ...] = Field((), description="further names in the Host header, as JSON")
    cors_origins: tuple[str, ...] = Field((), description="origins of pages elsewhere that may use the API, as JSON")
    frame_ancestors: tuple[str, ...] = Field((), description="origins of pages that may show ours in a frame, as JSON")
    trusted_proxies: tuple[str, ...] = Field((), description="addresses whose X-Forwarded headers count, as JSON")
    rate_requests: int = Field(0, ge=0, description="requests a minute and key; 0: no limit")
    rate_images: int = Field(0, ge=0, description="images a minute and key; 0: no limit")
    allow_urls: bool = Field(False, description="fetch images that are given as web addresses")
    url_domains: tuple[str, ...] = Field((), description="the only domains to fetch from, as JSON; none: any public")
    url_ports: tuple[int, ...] = Field((80, 443), description="the only ports to fetch from, as JSON")
    log_format: Literal["text", "json"] = Field("text", description="of the log: for a person, or for a program")
    url_s: float = Field(10.0, gt=0, description="seconds for all fetching of a request")
    jobs_waiting: int = Field(100, ge=1, description="jobs that may wait; above, 429")
    jobs_kept: int = Field(1000, ge=1, description="ended jobs that are kept")
    source_folders: tuple[Path, ...] = Field(
        (), description="folders of which jobs may read files, as JSON; the log says at the start which are not there"
    )
    runs: Path | None = Field(None, description="folder of pretraining runs, whose reports are shown")
    replies_kept: int = Field(10_000, ge=0, description="answers kept for Idempotency-Key; 0: none")
    replies_bytes: int = Field(200_000_000, ge=0, description="bytes of them")

    @field_validator("model_memory", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        """4GB is 4,000,000,000."""
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        return value if match is None else int(float(match[1]) * _UNITS[match[2].upper()])

    @field_validator("cors_origins", "frame_ancestors")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            if (
                parts.scheme not in ("http", "https")
                or not parts.netloc
                or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise ValueError("an origin is written https://example.com, without a path or a star")
        return origins

    @property
    def has_keys(self) -> bool:
        """Whether one needs a key."""
        return bool(self.api_keys or self.write_keys or self.keys_file)

    @property
    def local(self) -> bool:
        """Whether it listens on this machine alone."""
        return is_loopback(self.host)

    def keys(self) -> Keys:
        """All keys.

        Raises:
            InvalidRequest: one is no key, or a weak one.
        """
        return Keys(self.api_keys, self.write_keys, self.keys_file)

    def sent(self) -> Self:
        """As they may be sent to other machines: keys as their hashes, and whole paths."""
        hashed = [(WRITE in key.scopes, SecretStr(f"{key.name}:sha256:{key.digest.hex()}")) for key in self.keys()]
        return self.model_copy(
            update={
                "api_keys": tuple(key for writes, key in hashed if not writes),
                "write_keys": tuple(key for writes, key in hashed if writes),
                "keys_file": None,
                "source_folders": tuple(folder.resolve() for folder in self.source_folders),
                "runs": self.runs and self.runs.resolve(),
            }
        )

    @classmethod
    def read(cls, **flags: Any) -> Self:
        """Settings from flags, and from the environment where there is no flag.

        Raises:
            InvalidRequest: a value that cannot be, or a door that would stand open to the network.
        """
        try:
            settings = cls(**flags)
        except (ValidationError, SettingsError) as error:
            raise InvalidRequest(f"The server's settings cannot be read: {_first(error)}") from error
        if not settings.keys() and not settings.insecure and not settings.local:
            raise InvalidRequest(
                f"Listening on {settings.host or 'all addresses'} would let anyone on the network read and write: give "
                "--keys FILE, where a key is made if there is none, or set NNCLR_WRITE_KEYS and NNCLR_API_KEYS to "
                'lists like ["name:a-long-key"]; --insecure serves without.'
            )
        return settings


def _first(error: ValidationError | SettingsError) -> str:
    if isinstance(error, SettingsError):
        field = re.search(r'field "(\w+)"', str(error))
        name = f"NNCLR_{field[1].upper()}" if field else "one of them"
        return f'{name} is no JSON, in which lists are written, like ["name:a-long-key"].'
    part = error.errors()[0]
    name = str(part["loc"][0]).upper()
    given = "given" if name in ("API_KEYS", "WRITE_KEYS") else repr(part["input"])  # no secret in a sentence
    return f"NNCLR_{name} (or its flag) is {given}: {part['msg']}."


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` is reached from this machine alone; all of its addresses count."""
    if not host:
        return False  # all interfaces
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    plain = [getattr(one, "ipv4_mapped", None) or one for one in addresses]
    return bool(plain) and all(one.is_loopback for one in plain)
