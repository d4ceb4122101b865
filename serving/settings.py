"""Settings of the server, from command-line flags and, where there is no flag, NNCLR_* environment variables."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from nnclr_hub.cores import usable_cores
from nnclr_hub.errors import InvalidRequest
from nnclr_hub.images.pool import DecodingLimits, parse_bytes

from .keys import WRITE, Keys


class Settings(BaseSettings):
    """All settings. The descriptions of the fields appear in `nnclr serve --help` and in the docs."""

    model_config = SettingsConfigDict(env_prefix="NNCLR_", extra="ignore", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
    backend: str = Field("auto", description="what runs the models, as in `nnclr embed --backend`")
    max_batch: int = Field(32, ge=1, description="images per forward pass")
    max_wait_ms: float = Field(5.0, ge=0, description="milliseconds that a batch may wait for other images in progress")
    decode_threads: int = Field(
        default_factory=lambda: usable_cores() + 2,
        ge=1,
        description="images decoded at once, each in its own process; two costly images delay no other",
    )
    decode_cpu_s: float = Field(
        2.0, gt=0, description="CPU seconds to decode an image; others wait at most that long for one that takes more"
    )
    decode_memory: int = Field(
        DecodingLimits.memory, ge=1, description="memory to decode one image in bytes, or like 2GB (Linux)"
    )
    capacity: int = Field(
        512, ge=1, description="images in progress at once, at most half of them for jobs; 429 above that"
    )
    capacity_bytes: int = Field(256_000_000, ge=1, description="bytes of images in progress at once; 429 above that")
    deadline_s: float = Field(30.0, gt=0, description="seconds after which a request expires with 504")
    search_capacity: int = Field(256, ge=1, description="search queries in progress at once; 429 above that")
    answer_bytes: int = Field(64_000_000, ge=1, description="bytes of one answer; 413 above that")
    answers_bytes: int = Field(512_000_000, ge=1, description="bytes of all answers in memory; 429 above that")
    drain_s: float = Field(
        0.0, ge=0, description="seconds between SIGTERM, when /readyz answers 503, and the end of listening"
    )
    stall_s: float = Field(60.0, gt=0, description="seconds before an unresponsive device thread is replaced")
    attention_side: int = Field(1024, ge=224, description="maximum long side in pixels of images for attention maps")
    max_images: int = Field(128, ge=1, description="images per request")
    max_bytes: int = Field(20_000_000, ge=1, description="bytes of a request body")
    import_bytes: int = Field(4_000_000_000, ge=1, description="bytes of a file that is uploaded to be imported")
    bodies_bytes: int = Field(512_000_000, ge=1, description="bytes of all request bodies in memory; 429 above that")
    connections: int = Field(512, ge=1, description="open connections; 503 above that")
    body_idle_s: float = Field(20.0, gt=0, description="seconds that a client may pause while it sends a body")
    body_s: float = Field(120.0, gt=0, description="seconds until a body must be complete")
    api_keys: tuple[SecretStr, ...] = Field((), description='keys that may read, as a JSON list: ["name:secret"]')
    write_keys: tuple[SecretStr, ...] = Field((), description="keys that may read and write, as a JSON list")
    keys_file: Path | None = Field(None, description="file of keys, one per line: read KEY or write KEY")
    read_only: bool = Field(False, description="serve existing data, and answer every write with 403")
    insecure: bool = Field(False, description="allow access from the network without keys")
    session_hours: float = Field(12.0, gt=0, description="hours until a login to the web app expires")
    session_secret: SecretStr = Field(
        default_factory=lambda: SecretStr(secrets.token_hex(32)),
        min_length=32,
        description="signs logins; set it if several servers answer at one address. By default random at each start",
    )
    allowed_hosts: tuple[str, ...] = Field((), description="more names allowed in the Host header, as a JSON list")
    cors_origins: tuple[str, ...] = Field((), description="other origins that may use the API (CORS), as a JSON list")
    trusted_proxies: tuple[str, ...] = Field((), description="proxies whose X-Forwarded headers count, as a JSON list")
    allow_urls: bool = Field(False, description="fetch images that are given as URLs")
    url_domains: tuple[str, ...] = Field((), description="domains to fetch from, as a JSON list; empty means any")
    url_ports: tuple[int, ...] = Field((80, 443), description="ports to fetch from, as a JSON list")
    log_format: Literal["text", "json"] = Field("text", description="format of the log")
    url_s: float = Field(10.0, gt=0, description="seconds for all fetches of one request")
    jobs_waiting: int = Field(100, ge=1, description="jobs that may wait; 429 above that")
    jobs_kept: int = Field(1000, ge=1, description="number of ended jobs to keep")
    source_folders: tuple[Path, ...] = Field(
        (), description="folders that jobs may read, as a JSON list; missing ones are logged at startup"
    )
    originals_bytes: int = Field(
        0, ge=0, description="bytes of the originals of uploaded images that are kept next to the store; 0 keeps none"
    )
    backup_to: str | None = Field(None, description="folder or address for the backups that clients may start")
    runs: Path | None = Field(None, description="folder of pretraining runs whose reports are served")

    @field_validator("decode_memory", "originals_bytes", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        """Parse sizes such as 4GB; pydantic reports other text."""
        try:
            return parse_bytes(value) if isinstance(value, str) else value
        except ValueError:
            return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            if (
                parts.scheme not in ("http", "https")
                or not parts.netloc
                or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise ValueError("an origin has the form https://example.com, without a path or a star")
        return origins

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self.api_keys or self.write_keys or self.keys_file)

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    def keys(self) -> Keys:
        """Return all keys.

        Raises:
            InvalidRequest: a key is malformed or too weak.
        """
        return Keys(self.api_keys, self.write_keys, self.keys_file)

    def portable(self) -> Self:
        """Return a copy for other machines: keys replaced by their hashes, and absolute paths."""
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
        """Read the settings from flags and the environment.

        Raises:
            InvalidRequest: a value is invalid, or the server would be open to the network without keys.
        """
        try:
            settings = cls(**flags)
        except (ValidationError, SettingsError) as error:
            raise InvalidRequest(f"Invalid setting: {_first(error)}") from error
        if not settings.keys() and not settings.insecure and not settings.local:
            raise InvalidRequest(
                f"Without keys, anyone on the network could read and write on {settings.host or 'all addresses'}; "
                "pass --keys FILE, which creates a key if the file does not exist, set NNCLR_WRITE_KEYS or "
                'NNCLR_API_KEYS to a list like ["name:a-long-key"], or allow it with --insecure.'
            )
        return settings


def _first(error: ValidationError | SettingsError) -> str:
    if isinstance(error, SettingsError):
        field = re.search(r'field "(\w+)"', str(error))
        name = f"NNCLR_{field[1].upper()}" if field else "one of them"
        return f'{name} is not valid JSON; expected a list like ["name:a-long-key"].'
    part = error.errors()[0]
    name = str(part["loc"][0]).upper()
    value = "" if name in ("API_KEYS", "WRITE_KEYS") else f" = {part['input']!r}"  # never show a secret
    return f"NNCLR_{name}{value} (or its flag): {part['msg']}."


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`. All addresses of a name count."""
    if not host:
        return False  # all interfaces
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    plain = [getattr(one, "ipv4_mapped", None) or one for one in addresses]
    return bool(plain) and all(one.is_loopback for one in plain)
