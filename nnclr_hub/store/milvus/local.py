"""What a store in Milvus keeps on this machine: its records, beside a Lite file, or in a folder for a server.

milvus://host:19530/photos    $NNCLR_STATE/host-19530-photos/records.sqlite, else below ./nnclr-state
./photos.milvus.db            ./photos.milvus.records.sqlite
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from nnclr_hub.store.milvus.client import Connection
from nnclr_hub.store.records import RECORDS, Records

DEFAULT_STATE = "nnclr-state"


def records_of(uri: str, connection: Connection, *, read_only: bool) -> Records:
    """The records that belong to an address or a file; one process at a time uses those of a server."""
    if connection.is_file:  # which one process has, too
        return Records(Path(uri).with_suffix(f".{RECORDS}"), read_only=read_only)
    # of the connection, whose name says nothing of the password
    place = re.sub(r"[^A-Za-z0-9.]+", "-", connection.name.removeprefix("milvus://"))
    folder = Path(os.environ.get("NNCLR_STATE") or DEFAULT_STATE, place)
    return Records(folder / RECORDS, read_only=read_only, locked=True)
