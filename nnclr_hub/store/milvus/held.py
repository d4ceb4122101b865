"""What searches and care need of a collection in Milvus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from nnclr_hub.store.base import Collection, Where
from nnclr_hub.store.milvus.client import Connection
from nnclr_hub.store.milvus.where import Plan


class Held(Collection, Protocol):
    """A collection whose rows can be read one by one."""

    connection: Connection

    def scan(
        self, wanted: Plan, where: Where | None, fields: list[str], after: str = "", hint: int = ...
    ) -> Iterator[dict[str, Any]]:
        """Every row that passes the filter, in the order of ids."""
        ...

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """A method of pymilvus's client on this collection."""
        ...

    def read(self, method: str, **options: Any) -> Any:
        """A reading method, which sees all that this client has written."""
        ...

    def rows(self, ids: Sequence[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        """Columns of the items of these ids that exist, by id."""
        ...
