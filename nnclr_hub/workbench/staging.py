"""Files that came from a browser and wait for the job that adds them.

    ticket = stage([("cat/01.jpg", [uploaded]), ("photos.zip", [part1, part2])])    # they are moved away
    for file in staged(ticket):
        file.name, file.path
    renew(ticket)                               # a job has it: its week begins anew
    unstage(ticket)
    note(ticket, ["id"])                        # that it begins to add these; a job that is begun again asks `noted`

They lie in the cache, under a ticket that a job can keep: neither a closed browser nor a server that ends loses them.
Each goes after a week, which begins anew when a job takes it, and when a server starts that has the job: nothing else
tells a job that is still to come from one that is lost, for the jobs are in the store and these are not.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nnclr_hub.cache import cache_folder
from nnclr_hub.errors import InvalidRequest, Overloaded

KEPT_S = 7 * 24 * 3600
MOST_BYTES = 4_000_000_000  # that wait at once
LIST = "names.json"
BEGUN = "begun.txt"
_TICKET = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Staged:
    """A file that waits, and what it was called: its path below the folder that was chosen."""

    name: str
    path: Path


def stage(files: Sequence[tuple[str, Sequence[Path]]]) -> str:
    """Moves files here; each is its parts, one after the other.

    Args:
        files: (name, parts), the parts being ours to take away.

    Returns:
        The ticket, for `staged`.

    Raises:
        Overloaded: too much waits already.
    """
    _sweep()
    ticket = secrets.token_hex(16)
    folder = _folder() / ticket
    folder.mkdir(parents=True)
    try:
        for index, (_, parts) in enumerate(files):
            first, *others = parts
            shutil.move(first, folder / str(index))
            if others:
                _append(folder / str(index), others)
        (folder / LIST).write_text(json.dumps([name for name, _ in files]))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return ticket


def staged(ticket: str) -> list[Staged]:
    """What waits under a ticket.

    Raises:
        InvalidRequest: nothing does.
    """
    folder = _folder() / ticket
    if not _TICKET.fullmatch(ticket) or not (folder / LIST).is_file():
        raise InvalidRequest("The images that waited to be added are no longer there: choose them again.")
    names = json.loads((folder / LIST).read_text())
    return [Staged(name, folder / str(index)) for index, name in enumerate(names)]


def renew(ticket: str) -> None:
    """Lets what waits under a ticket stay another week; nothing happens where there is nothing."""
    if _TICKET.fullmatch(ticket):
        with suppress(OSError):  # the old week goes on
            os.utime(_folder() / ticket)


def unstage(ticket: str) -> None:
    """Takes away what is left under a ticket; nothing happens where there is nothing."""
    if _TICKET.fullmatch(ticket):
        shutil.rmtree(_folder() / ticket, ignore_errors=True)


def note(ticket: str, lines: Sequence[str]) -> None:
    """Keeps lines beside what waits, as long as that does; durable when it returns."""
    with (_folder() / ticket / BEGUN).open("a") as file:
        file.write("\n" + "\n".join(lines) + "\n")  # the line before may be torn, if a server ended within it
        file.flush()
        os.fsync(file.fileno())


def noted(ticket: str) -> set[str]:
    """The lines that were kept."""
    path = _folder() / ticket / BEGUN
    return set(path.read_text().split("\n")) - {""} if path.is_file() else set()


def _append(path: Path, parts: Sequence[Path]) -> None:
    with path.open("ab") as whole:
        for part in parts:
            with part.open("rb") as file:
                shutil.copyfileobj(file, whole, 1 << 20)
            part.unlink()


def _folder() -> Path:
    return cache_folder() / "adding"


def _size(file: Path) -> int:
    """Its bytes; none if its job has just taken it away."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _sweep() -> None:
    """Forgets what nobody came for, and refuses more where too much waits."""
    size, oldest = 0, time.time() - KEPT_S
    for folder in _folder().iterdir() if _folder().is_dir() else ():
        try:
            if _TICKET.fullmatch(folder.name) and folder.stat().st_mtime < oldest:
                unstage(folder.name)
            else:
                size += sum(map(_size, folder.iterdir()))
        except FileNotFoundError:  # its job ended at this moment, and took it away
            continue
    if size > MOST_BYTES:
        raise Overloaded("Too many images wait to be added: wait until some of the jobs are done.", 60.0)
