"""Whether a model folder holds the files that it should.

A file is hashed when it is first loaded. Its hash is then remembered in our cache folder under its path, size, time of
change and inode, so that later loads need not read it twice; where the cache cannot be written, it is hashed each time.

Who says what the hash must be decides what a match means:

    registry, address    a file that this project published, or that the address itself names: nobody changed it
    Hub                  the file that the Hub announced when it was fetched: whole and undamaged
    config.json          the folder's own word: the files belong together and are whole, but whoever changes the
                         weights can change config.json as well
    nobody               nothing is recorded, as in a folder that timm wrote
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
from nnclr_hub.hub.layout import BESIDE, CONFIG, WEIGHTS, require, sha256_of

# a file changed twice within one tick of the file system's clock looks the same; one this old is not being written
SETTLED = 2.0  # seconds
_BLOB = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Pins:
    """What hashes a model folder's files must have.

    by: who says so: "registry", "address", "Hub", "config.json" or "nobody".
    sha256: hex digest, or its first digits, by the file's name.
    """

    by: str
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileCheck:
    """One file of a model folder, hashed.

    name: of the file.
    sha256: hex digest of what is there.
    pinned_by: who says that it must be so; "nobody" when nothing is recorded of it.
    """

    name: str
    sha256: str
    pinned_by: str


def check(folder: Path, pins: Pins) -> None:
    """Compares the files with their pins.

    Raises:
        ModelFilesMissing: a pinned file is not there.
        TamperedModel: a file's hash is another.
    """
    for name, expected in pins.sha256.items():
        _check_file(require(folder, name), expected, pins.by)


def hash_again(folder: Path, names: tuple[str, ...], pins: Sequence[Pins]) -> tuple[FileCheck, ...]:
    """Reads every file of those names that is there, whatever is remembered of it, and compares it with all pins.

    Raises:
        TamperedModel: a file's hash is another.
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
    """What the Hub said of a folder's large files, if it did: its client keeps each under its sha256, and never looks
    whether it has it."""
    blobs = {name: (folder / name).resolve().name for name in (WEIGHTS, *BESIDE)}
    blobs = {name: blob for name, blob in blobs.items() if _BLOB.fullmatch(blob)}
    return Pins("Hub", blobs) if blobs else None


def digest_of(path: Path) -> str:
    """sha256 of a file in hex, from memory if the file is still the one that was hashed."""
    path = path.resolve()
    state = _state(path)
    memo = cache_folder() / "sha256" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}.json"
    known = _read(memo)
    if known.get("file") == state:
        return str(known["sha256"])
    digest = sha256_of(path)
    if _state(path) == state and time.time() - path.stat().st_mtime > SETTLED:
        _remember(memo, {"file": state, "sha256": digest})
    return digest


def _check_file(path: Path, expected: str, by: str) -> None:
    """A match may be remembered; that a file is another is not believed until it is read."""
    if not digest_of(path).startswith(expected.lower()):
        _compare(path, sha256_of(path), expected, by)


def _compare(path: Path, actual: str, expected: str, by: str) -> None:
    if not actual.startswith(expected.lower()):
        what = {
            "registry": "the published file",
            "address": "the file that its address names",
            "Hub": "the file that the Hub announced",
        }.get(by, f"the file that its {CONFIG} records")
        raise TamperedModel(
            f"{path} is not {what} (sha256 {actual[:12]}..., expected {expected[:12]}...): it is damaged or was "
            "changed; delete it and fetch or export the model again."
        )


def _state(path: Path) -> list[str | int]:
    """What changes when a file does. The time of the inode's change cannot be set back by whoever edits in place."""
    found = path.stat()
    return [str(path), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _read(memo: Path) -> dict[str, object]:
    """What is remembered; nothing if it is not there or cannot be read."""
    try:
        known = json.loads(memo.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and isinstance(known.get("sha256"), str) else {}


def _remember(memo: Path, known: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, and must not cost the load
        memo.parent.mkdir(parents=True, exist_ok=True)
        descriptor, half = tempfile.mkstemp(dir=memo.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(known, file)
            os.replace(half, memo)
        except OSError:
            os.unlink(half)
            raise
