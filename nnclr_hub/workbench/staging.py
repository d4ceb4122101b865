"""The staging area: uploaded files that wait for the job that adds them.

    ticket = stage([("cat/01.jpg", [uploaded]), ("photos.zip", [part1, part2])])    # moves the files
    for file in staged(ticket):
        file.name, file.path
    renew(ticket)                               # when a job takes the files: their week restarts
    note(ticket, ["id"])                        # records that these are being added; see `noted`
    unstage(ticket)

    partial_file(ticket)                        # of an upload that arrives in parts; `complete` makes it a staged file

    with staged_images(ticket, most_bytes=20_000_000) as (images, left_out):    # also those in archives
        images[0].name, images[0].label, images[0].read()                       # read only when it is needed

The files are in the cache folder under a ticket, so they survive a closed browser and a restart of the server. They are
deleted after a week. The week restarts when a job takes them, and when a server starts that has the job: jobs are in
the store and files are not, so their age is the only sign that nobody needs them.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from nnclr_hub.cache import cache_folder
from nnclr_hub.encoder.image_folder import label_of
from nnclr_hub.errors import InvalidRequest, Overloaded
from nnclr_hub.store.folder import fsync_folder
from nnclr_hub.workbench.image_tar import TarMember, members
from nnclr_hub.workbench.image_zip import MOST_FILES, SUFFIX, ImageZip, too_large

KEPT_S = 7 * 24 * 3600
TAR_SUFFIX = ".tar"
MOST_BYTES = 20_000_000_000  # of all waiting files
LIST = "names.json"
BEGUN = "begun.txt"
_TICKET = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Staged:
    """A waiting file and its name: its path below the folder that the user chose."""

    name: str
    path: Path


def stage(files: Sequence[tuple[str, Sequence[Path]]]) -> str:
    """Move files into the staging area, joining the parts of each.

    Args:
        files: (name, parts); the parts are removed.

    Returns:
        The ticket, for `staged`.

    Raises:
        Overloaded: if too many bytes wait already.
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


def partial_file(ticket: str) -> Path:
    """Return the file that collects an upload, which may be new.

    Raises:
        Overloaded: if too many bytes wait already.
    """
    _sweep()
    folder = _folder() / ticket
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "0").touch()
    return folder / "0"


def partial_size(ticket: str) -> int:
    """Return how many bytes of an upload have arrived."""
    return _size(_folder() / ticket / "0")


def complete(ticket: str, name: str) -> None:
    """Make the file of `partial_file` a staged file; durable when it returns."""
    folder = _folder() / ticket
    with (folder / "0").open("rb") as file:
        os.fsync(file.fileno())
    with (folder / LIST).open("w") as file:
        json.dump([name], file)
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(folder)
    fsync_folder(folder.parent)


def staged(ticket: str) -> list[Staged]:
    """Return the files of a ticket.

    Raises:
        InvalidRequest: if there are none.
    """
    folder = _folder() / ticket
    if not _TICKET.fullmatch(ticket) or not (folder / LIST).is_file():
        raise InvalidRequest("The uploaded images no longer exist; choose them again.")
    names = json.loads((folder / LIST).read_text())
    return [Staged(name, folder / str(index)) for index, name in enumerate(names)]


def renew(ticket: str) -> None:
    """Keep the files of a ticket for another week; does nothing if there are none."""
    if _TICKET.fullmatch(ticket):
        with suppress(OSError):  # the files keep their old deadline
            os.utime(_folder() / ticket)


def unstage(ticket: str) -> None:
    """Delete the files of a ticket; does nothing if there are none."""
    if _TICKET.fullmatch(ticket):
        shutil.rmtree(_folder() / ticket, ignore_errors=True)


def note(ticket: str, lines: Sequence[str]) -> None:
    """Store lines with the files of a ticket; durable when it returns."""
    with (_folder() / ticket / BEGUN).open("a") as file:
        file.write("\n" + "\n".join(lines) + "\n")  # the last line may be incomplete after a kill
        file.flush()
        os.fsync(file.fileno())


def noted(ticket: str) -> set[str]:
    """Return the lines of `note`."""
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
    """Return its number of bytes; 0 if its job has just deleted it."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _sweep() -> None:
    """Delete expired files, and raise Overloaded if too many bytes wait."""
    size, oldest = 0, time.time() - KEPT_S
    for folder in _folder().iterdir() if _folder().is_dir() else ():
        try:
            if _TICKET.fullmatch(folder.name) and folder.stat().st_mtime < oldest:
                unstage(folder.name)
            else:
                size += sum(map(_size, folder.iterdir()))
        except FileNotFoundError:  # its job ended at this moment and deleted it
            continue
    if size > MOST_BYTES:
        raise Overloaded("Too many images wait to be added; wait until some of the jobs are done.", 60.0)


# ---- images


@dataclass(frozen=True)
class StagedImage:
    """An image among staged files.

    name: its path below the folder that the user chose, or within its zip.
    label: the folder that contains it; "" for none.
    read: returns its bytes; raises ImageError if it cannot be read.
    """

    name: str
    label: str
    read: Callable[[], bytes]


@contextmanager
def staged_images(ticket: str, most_bytes: int) -> Iterator[tuple[list[StagedImage], list[tuple[str, str]]]]:
    """Open the images of a ticket; also yields (name, reason) of entries that were left out of a zip.

    Raises:
        InvalidRequest: if the ticket has no files, or a zip cannot be accepted.
    """
    with opened_images(staged(ticket), most_bytes) as found:
        yield found


@contextmanager
def opened_images(
    files: Sequence[Staged], most_bytes: int
) -> Iterator[tuple[list[StagedImage], list[tuple[str, str]]]]:
    """Open the images of files, and those in zip and tar archives; see `staged_images`."""
    images: list[StagedImage] = []
    left_out: list[tuple[str, str]] = []
    with ExitStack() as opened:
        for file in files:
            suffix = Path(file.name).suffix.lower()
            if suffix == SUFFIX:
                zip = opened.enter_context(ImageZip(file.path, file.name, most_bytes))
                left_out += zip.left_out
                images += _labeled({name: partial(zip.read, name) for name in zip.names})
            elif suffix == TAR_SUFFIX:
                images += _labeled(_of_tar(file, most_bytes))
            else:
                read = partial(_read, file.path, most_bytes)
                images.append(StagedImage(file.name, label_of(Path(file.name), Path()) or "", read))
        yield images, left_out


def _labeled(reads: Mapping[str, Callable[[], bytes]]) -> list[StagedImage]:
    """Return the images of an archive, by their names in it."""
    root = root_of(list(reads))
    return [StagedImage(name, label_of(Path(name), root) or "", read) for name, read in reads.items()]


def _of_tar(file: Staged, most_bytes: int) -> dict[str, Callable[[], bytes]]:
    changed = file.path.stat().st_mtime
    reads: dict[str, Callable[[], bytes]] = {}
    for name, size, _, offset in members(file.path, file.name):
        if len(reads) == MOST_FILES:
            raise InvalidRequest(f"{file.name} holds more than {MOST_FILES:,} images; split it into several archives.")
        member = TarMember(str(file.path), changed, offset, size)
        reads[name] = partial(_read_member, member, most_bytes)
    if not reads:
        raise InvalidRequest(f"{file.name} holds no images; put JPEG, PNG or other images into it.")
    return reads


def _read_member(member: TarMember, most_bytes: int) -> bytes:
    if member.size > most_bytes:
        raise too_large(member.size, most_bytes)
    return member.read()


def root_of(names: Sequence[str]) -> Path:
    """Return the top folder if all images are in one: it is what was packed, not a label."""
    tops = {"/".join(PurePosixPath(name).parts[:-1][:1]) for name in names}
    return Path(tops.pop()) if len(tops) == 1 else Path()


def _read(path: Path, most_bytes: int) -> bytes:
    if path.stat().st_size > most_bytes:
        raise too_large(path.stat().st_size, most_bytes)
    return path.read_bytes()
