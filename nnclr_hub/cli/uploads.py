"""nnclr index --server: a folder to a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nnclr_hub.cli.verbs import err
from nnclr_hub.errors import Unauthorized

if TYPE_CHECKING:
    from nnclr_hub.workbench.folder_changes import IndexReport

START_S = 120.0  # a server that is just being started loads its model first


def upload(
    server: str,
    key_name: str,
    collection: str,
    photos: Path,
    *,
    model: str | None,
    source: str | None,
    workers: int,
    shrink: int | None,
    prune: bool,
) -> tuple[IndexReport, int]:
    """Sends what the server's collection lacks: what was done, and how many items it has. Makes the collection.

    Args:
        key_name: the environment variable that holds the server's key.

    Raises:
        FingerprintMismatch: it was made with another model than the one that is named.
        Unauthorized: the server wants a key, and the variable holds none of its own.
    """
    from nnclr_hub.client import Client
    from nnclr_hub.errors import CollectionNotFound, NotReady
    from nnclr_hub.progress import bar
    from nnclr_hub.workbench.folder_changes import listed

    listed(photos, prune=prune)  # a wrong folder is told at once
    key = os.environ.get(key_name)
    with _key_named(server, key, key_name), Client(server, key) as client, bar(err, "uploading") as advance:
        if not client.ready() and not client.ready(wait=START_S):
            raise NotReady(f"The server at {server} is not ready: see what its /readyz says.")
        remote = client.collection(collection)
        try:
            spec = remote.info().spec
        except CollectionNotFound:
            listed(photos)  # and must not leave an empty collection behind
            spec = client.collections.create(collection, model=model).spec
        if model is not None:
            spec.check(client.model(model), collection)
        report = remote.index_folder(
            photos, prune=prune, workers=workers, shrink=shrink, source=source, progress=advance
        )
        return report, remote.count()


@contextmanager
def _key_named(server: str, key: str | None, name: str) -> Iterator[None]:
    """A refused key with the variable that it is read from, which the server cannot know.

    Raises:
        Unauthorized: says where to put the key.
    """
    try:
        yield
    except Unauthorized as error:
        what = "wants a key" if key is None else f"does not know the key in {name}"
        raise Unauthorized(
            f"{server} {what}: set {name} to the key that its owner gave you, or name another variable with "
            "--api-key-env."
        ) from error
