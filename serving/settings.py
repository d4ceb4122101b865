"""Settings of the server, from NNCLR_* environment variables; the command line's flags come first."""

from __future__ import annotations

import ipaddress
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from nnclr_hub.errors import InvalidRequest


class Settings(BaseSettings):
    """See the fields."""

    model_config = SettingsConfigDict(env_prefix="NNCLR_", extra="ignore")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
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

    @model_validator(mode="after")
    def _refuse_an_open_door(self) -> Self:
        if not self.is_local and not self.has_keys and not self.insecure:
            raise InvalidRequest(
                f"Listening on {self.host} would let anyone on the network read and write: set NNCLR_WRITE_KEYS and "
                "NNCLR_API_KEYS to lists of keys, or give --insecure."
            )
        return self
