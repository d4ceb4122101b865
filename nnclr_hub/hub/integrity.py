"""Verify the files of a model folder by their sha256.

A file is hashed when it is first loaded. The hash is cached under the file's path, size, modification time and inode,
so that later loads need not read it twice. Without a writable cache, it is hashed each time.

The source of the expected hash decides what a match proves:

    registry, address    the file is the published one, or the one that the address names: nobody changed it
    Hub                  the file is the one that the Hub announced for the download: complete and undamaged
    config.json          the files of the folder belong together and are complete; an attacker who changes the weights
                         can change config.json as well
    nobody               no hash is recorded, as in a folder that timm wrote
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import TamperedModel
from nnclr_hub.hub.layout import CONFIG, OPTIONAL, WEIGHTS, require, sha256_of

# two changes within one tick of the file system's clock look the same; only older files are safe to cache
SETTLED = 2.0  # seconds
_BLOB = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Pins:
    """The expected hashes of a model folder's files.

    by: their source: "registry", "address", "Hub", "config.json" or "nobody".
    sha256: file name -> hex digest, or its first digits.
    """

    by: str
    sha256: Mapping[str, str] = field(default_factory=dict)


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
    for name, expected in pins.sha256.items():
        path = require(folder, name)
        if not digest_of(path).startswith(expected.lower()):  # read the file again, since the cache may be wrong
            _compare(path, sha256_of(path), expected, pins.by)


def hash_again(folder: Path, names: tuple[str, ...], pins: Sequence[Pins]) -> tuple[FileCheck, ...]:
    """Hash the existing files of these names without the cache, and compare them with all pins.

    Raises:
        TamperedModel: the hash of a file differs.
    """
    checks = []
    for name in names:
        if (folder / name).is_file():
            digest, by = sha256_of(folder / name), [one for one in pins if name in one.sha256]
            for one in by:
                _compare(folder / name, digest, one.sha256[name], one.by)
            checks.append(FileCheck(name, digest, by[0].by if by else "nobody"))
    return tuple(checks)


def announced(folder: Path) -> Pins | None:
    """Return the hashes that the Hub announced for large files, if any.

    Its client names each cached file by its announced sha256, but does not verify the content.
    """
    blobs = {name: (folder / name).resolve().name for name in (WEIGHTS, *OPTIONAL)}
    blobs = {name: blob for name, blob in blobs.items() if _BLOB.fullmatch(blob)}
    return Pins("Hub", blobs) if blobs else None


def digest_of(path: Path) -> str:
    """Return the sha256 of a file in hex, from the cache if the file did not change."""
    path = path.resolve()
    state = _state(path)
    memo = cache_folder() / "sha256" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"
    known = _read(memo)
    if known.get("file") == state:
        return str(known["sha256"])
    digest = sha256_of(path)
    if _state(path) == state and time.time() - path.stat().st_mtime > SETTLED:
        _write(memo, {"file": state, "sha256": digest})
    return digest


def _compare(path: Path, actual: str, expected: str, by: str) -> None:
    if not actual.startswith(expected.lower()):
        what = {
            "registry": "the published file",
            "address": "the file that its address names",
            "Hub": "the file that the Hub announced",
        }.get(by, f"the file that its {CONFIG} records")
        raise TamperedModel(
            f"{path} is not {what} (sha256 {actual[:12]}..., expected {expected[:12]}...). It is damaged, or was "
            "changed, as by `save_pretrained` of transformers. "
            f"`nnclr convert {path} NEW_FOLDER` makes a model of your own weights; otherwise "
            "download or export the model again, to another folder."
        )


def _state(path: Path) -> list[str | int]:
    """Return values that change with the file; the inode's change time cannot be set back after an edit."""
    found = path.stat()
    return [str(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _read(memo: Path) -> dict[str, object]:
    """Return a cache entry; {} if it does not exist or cannot be read."""
    try:
        known = json.loads(memo.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and isinstance(known.get("sha256"), str) else {}


def _write(memo: Path, known: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # loading must work without a writable cache
        memo.parent.mkdir(parents=True, exist_ok=True)
        descriptor, half = tempfile.mkstemp(dir=memo.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(known, file)
            os.replace(half, memo)
        except OSError:
            os.unlink(half)
            raise
