"""nnclr index --server: a folder to a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nnclr_hub.cli.verbs import err

if TYPE_CHECKING:
    from nnclr_hub.encoder.folder_changes import IndexReport

START_S = 120.0  # a server that is just being started loads its model first


def upload(
    server: str,
    key: str | None,
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

    Raises:
        FingerprintMismatch: it was made with another model than the one that is named.
    """
    from nnclr_hub.client import Client
    from nnclr_hub.encoder.image_folder import list_images
    from nnclr_hub.errors import CollectionNotFound, NotReady
    from nnclr_hub.progress import bar

    list_images(photos)  # a wrong folder must not leave an empty collection behind
    with Client(server, key) as client, bar(err, "uploading") as advance:
        if not client.ready() and not client.ready(wait=START_S):
            raise NotReady(f"The server at {server} is not ready: see what its /readyz says.")
        remote = client.collection(collection)
        try:
            spec = remote.info().spec
        except CollectionNotFound:
            spec = client.collections.create(collection, model=model).spec
        if model is not None:
            spec.check(client.model(model), collection)
        report = remote.index_folder(
            photos, prune=prune, workers=workers, shrink=shrink, source=source, progress=advance
        )
        return report, remote.count()
