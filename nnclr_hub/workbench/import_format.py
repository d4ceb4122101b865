"""The formats of files that can be imported into a collection. Imports neither torch nor pyarrow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.errors import InvalidRequest


@dataclass(frozen=True)
class ImportFormat:
    """A format of files.

    name: as results report it.
    media_type: of a request with such a file.
    suffixes: of file names.
    images: whether the file holds images, which must be embedded, or vectors.
    """

    name: str
    media_type: str
    suffixes: tuple[str, ...]
    images: bool = False


FORMATS = {
    one.name: one
    for one in (
        ImportFormat("ndjson", "application/x-ndjson", (".ndjson", ".jsonl")),
        ImportFormat("arrow", "application/vnd.apache.arrow.stream", (".arrow", ".arrows", ".feather")),
        ImportFormat("parquet", "application/vnd.apache.parquet", (".parquet",)),
        ImportFormat("zip", "application/zip", (".zip",), images=True),
        ImportFormat("tar", "application/x-tar", (".tar",), images=True),
    )
}


def format_of_file(name: str | Path) -> ImportFormat:
    """Return the format of a file by its suffix."""
    suffix = Path(name).suffix.lower()
    for one in FORMATS.values():
        if suffix in one.suffixes:
            return one
    known = ", ".join(suffix for one in FORMATS.values() for suffix in one.suffixes)
    raise InvalidRequest(f"{name} has a suffix that cannot be imported; expected one of {known}.")
