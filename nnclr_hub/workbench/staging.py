"""The staging area: an uploaded file that waits for the job that imports it.

    partial_file(ticket)                        # collects an upload, which may arrive in parts
    complete(ticket, "photos.zip")
    file = staged(ticket)
    file.name, file.path
    renew(ticket)                               # when a job takes the file: its week restarts
    unstage(ticket)

A ticket is a folder in the cache folder, so its file survives a lost connection and a restart of the server. It is
deleted after a week, or after a day without new bytes if it is not complete. The week restarts when a job takes it, and
when a server starts that has the job: jobs are in the store and files are not, so their age is the only sign that
nobody needs them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import InvalidRequest, Overloaded
from nnclr_hub.store.disk import fsync_folder

KEPT_S = 7 * 24 * 3600
PARTIAL_S = 24 * 3600  # since the last bytes of an upload that is not complete
MOST_BYTES = 20_000_000_000  # most bytes of all waiting files
FILE = "0"  # name of an upload that is not complete
WHOLE = "whole"
NAME = "names.json"
_TICKET = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Staged:
    """A file and the name that the user knows it by."""

    name: str
    path: Path


def partial_file(ticket: str) -> Path:
    """Return the file that collects an upload, which may be new.

    A complete file becomes partial again, so no job may have it.
    """
    _sweep()
    folder = _folder(ticket)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        (folder / WHOLE).rename(folder / FILE)
    (folder / FILE).touch()
    return folder / FILE


def partial_size(ticket: str) -> int:
    """Return how many bytes of an upload have arrived."""
    return max(_size(_folder(ticket) / name) for name in (FILE, WHOLE))


def complete(ticket: str, name: str) -> None:
    """Make the file of `partial_file` a staged file; durable when it returns.

    It is renamed, so that a connection that was replaced by another cannot write to it any more.
    """
    folder = _folder(ticket)
    with (folder / FILE).open("rb") as file:
        os.fsync(file.fileno())
    (folder / FILE).rename(folder / WHOLE)
    with (folder / NAME).open("w") as file:
        json.dump([name], file)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(folder)
    fsync_folder(folder.parent)


def staged(ticket: str) -> Staged:
    """Return the file of a ticket, or raise InvalidRequest if there is none."""
    folder = _folder(ticket)
    if not _TICKET.fullmatch(ticket) or not (folder / NAME).is_file():
        raise InvalidRequest("The uploaded file no longer exists; upload it again.")
    return Staged(json.loads((folder / NAME).read_text())[0], folder / WHOLE)


def folder_of(ticket: str) -> Path:
    """Return the folder with the file of a ticket."""
    return _folder() / ticket


def renew(ticket: str) -> None:
    """Keep the file of a ticket for another week; does nothing if there is none."""
    if _TICKET.fullmatch(ticket):
        with suppress(OSError):  # the file keeps its old deadline
            os.utime(_folder(ticket))


def unstage(ticket: str) -> None:
    """Delete the file of a ticket; does nothing if there is none."""
    if _TICKET.fullmatch(ticket):
        shutil.rmtree(_folder(ticket), ignore_errors=True)


def _folder(ticket: str = "") -> Path:
    return cache_folder() / "adding" / ticket


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _sweep() -> None:
    """Delete expired files, and raise Overloaded if too many bytes wait."""
    size = 0
    for folder in _folder().iterdir() if _folder().is_dir() else ():
        try:
            if _TICKET.fullmatch(folder.name) and _is_expired(folder):
                unstage(folder.name)
            else:
                size += sum(map(_size, folder.iterdir()))
        except FileNotFoundError:  # its job ended at this moment and deleted it
            continue
    if size > MOST_BYTES:
        raise Overloaded("Too many uploaded files wait to be imported; wait until some of the jobs are done.", 60.0)


def _is_expired(folder: Path) -> bool:
    now = time.time()
    with suppress(FileNotFoundError):  # the file is complete
        return (folder / FILE).stat().st_mtime < now - PARTIAL_S
    return folder.stat().st_mtime < now - KEPT_S
