"""Verify the files of a model folder by their sha256.

The source of the expected hash decides what a match proves:

    registry, address    the file is the published one, or the one that the address names: nobody changed it
    Hub                  the file is the one that the Hub announced for the download: complete and undamaged
    config.json          the files of the folder belong together and are complete; an attacker who changes the weights
                         can change config.json as well
    nobody               no hash is recorded, as in a folder that timm wrote
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nnclr_hub.errors import TamperedModel
from nnclr_hub.hub.layout import CONFIG, OPTIONAL, WEIGHTS, require, sha256_of

_BLOB = re.compile(r"[0-9a-f]{64}")
_PUBLISHED = {
    "registry": "the published file",
    "address": "the file that its address names",
    "Hub": "the file that the Hub announced",
}


@dataclass(frozen=True)
class Pins:
    """The expected hashes of a model folder's files.

    by: their source: "registry", "address", "Hub", "config.json" or "nobody".
    sha256: file name -> hex digest, or its first digits.
    """

    by: str
    sha256: Mapping[str, str] = field(default_factory=dict)

    def compare(self, path: Path, digest: str) -> None:
        """Raise TamperedModel if the hash of a file differs from its pin."""
        expected = self.sha256[path.name].lower()
        if not digest.startswith(expected):
            raise TamperedModel(
                f"{path} is not {_PUBLISHED.get(self.by, f'the file that its {CONFIG} records')} (sha256 "
                f"{digest[:12]}..., expected {expected[:12]}...). It is damaged, or was changed, as by "
                f"`save_pretrained` of transformers. `nnclr convert {path} NEW_FOLDER` makes a model of your own "
                "weights; otherwise download or export the model again, to another folder."
            )


@dataclass(frozen=True)
class FileCheck:
    """One file of a model folder, hashed.

    name: of the file.
    sha256: hex digest of the file.
    pinned_by: the source of the expected hash; "nobody" if none is recorded.
    """

    name: str
    sha256: str
    pinned_by: str


def check(folder: Path, pins: Pins) -> None:
    """Compare files with their pins.

    Raises:
        ModelFilesMissing: a pinned file is missing.
        TamperedModel: the hash of a file differs.
    """
    for name in pins.sha256:
        path = require(folder, name)
        pins.compare(path, sha256_of(path))


def check_each(folder: Path, names: tuple[str, ...], pins: Sequence[Pins]) -> tuple[FileCheck, ...]:
    """Hash the existing files of these names, and compare them with all pins."""
    checks = []
    for path in (folder / name for name in names if (folder / name).is_file()):
        digest, by = sha256_of(path), [one for one in pins if path.name in one.sha256]
        for one in by:
            one.compare(path, digest)
        checks.append(FileCheck(path.name, digest, by[0].by if by else "nobody"))
    return tuple(checks)


def announced(folder: Path) -> Pins | None:
    """Return the hashes that the Hub announced for large files, if any.

    Its client names each cached file by its announced sha256, but does not verify the content.
    """
    blobs = {name: (folder / name).resolve().name for name in (WEIGHTS, *OPTIONAL)}
    blobs = {name: blob for name, blob in blobs.items() if _BLOB.fullmatch(blob)}
    return Pins("Hub", blobs) if blobs else None
