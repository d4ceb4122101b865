"""Settings of the server, from NNCLR_* environment variables; the command line's flags come first."""

from __future__ import annotations

import ipaddress
from typing import Any, Self

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from nnclr_hub.errors import InvalidRequest


class Settings(BaseSettings):
    """See the fields."""

    model_config = SettingsConfigDict(env_prefix="NNCLR_", extra="ignore")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
    backend: str = Field("auto", description="what runs the networks, as in `nnclr embed --backend`")
    max_batch: int = Field(32, ge=1, description="pictures a forward pass")
    decode_threads: int = Field(4, ge=1, description="threads that decode pictures")
    capacity: int = Field(512, ge=1, description="pictures in work at once; above, 429")
    deadline_s: float = Field(30.0, gt=0, description="seconds after which queued work is dropped")
    stall_s: float = Field(60.0, gt=0, description="seconds a batch may take before the server counts as ill")
    max_images: int = Field(64, ge=1, description="pictures a request")
    max_bytes: int = Field(20_000_000, ge=1, description="bytes of a request's body")
    api_keys: tuple[SecretStr, ...] = Field((), description='keys that may read, as JSON: ["..."]')
    write_keys: tuple[SecretStr, ...] = Field((), description="keys that may read and write, as JSON")
    insecure: bool = Field(False, description="serve on other addresses than this machine's without keys")
    allowed_hosts: tuple[str, ...] = Field((), description="further names in the Host header, as JSON")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys or self.write_keys)

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
        if not settings.is_local and not settings.has_keys and not settings.insecure:
            raise InvalidRequest(
                f"Listening on {settings.host} would let anyone on the network read and write: set NNCLR_WRITE_KEYS "
                'and NNCLR_API_KEYS to lists like ["a-long-key"], or give --insecure.'
            )
        return settings


def _first(error: ValidationError | SettingsError) -> str:
    if isinstance(error, SettingsError):
        return f"{error}; lists are written as JSON."
    part = error.errors()[0]
    name = ".".join(map(str, part["loc"]))
    return f"NNCLR_{name.upper()} (or its flag) is {part['input']!r}: {part['msg']}."
