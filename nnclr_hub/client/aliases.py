"""Aliases: other names of a server's collections."""

from __future__ import annotations

from nnclr_hub.client.steps import Call, Steps, ask
from nnclr_hub.errors import CollectionNotFound
from nnclr_hub.store.checks import check_name

ROOT = "/api/v1/aliases"


def point(alias: str, collection: str) -> Steps[None]:
    """Makes an alias mean a collection, whatever it meant before, in one step for whoever asks.

    Raises:
        CollectionNotFound: names the collections that exist.
        CollectionExists: a collection is called so itself.
    """
    return ask(Call("PUT", _path(alias), lambda answer: None, json={"collection": collection}))


def list_aliases() -> Steps[dict[str, str]]:
    """Names of collections by alias."""
    return ask(Call("GET", ROOT, lambda answer: {one["alias"]: one["collection"] for one in answer.json()["aliases"]}))


def forget(alias: str) -> Steps[None]:
    """Forgets an alias; the collection stays.

    Raises:
        CollectionNotFound: there is none.
    """
    return ask(Call("DELETE", _path(alias), lambda answer: None, gone=CollectionNotFound))


def _path(alias: str) -> str:
    return f"{ROOT}/{check_name(alias, 'Alias')}"
