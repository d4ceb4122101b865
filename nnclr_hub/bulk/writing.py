"""Files that are there as a whole or not at all, whoever else writes beside."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import BinaryIO

from nnclr_hub.errors import DiskFull
from nnclr_hub.store.folder import fsync_folder

UNFINISHED = ".unfinished"
GIVEN_UP_S = 24 * 3600  # after which another machine's file is taken for one that nobody writes any more


@contextmanager
def written_whole(path: Path, *, first: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which takes its name, on disk, when the block is done; and is gone when the block fails.

    Args:
        first: where somebody else's has the name by then, leave that as it is.

    Raises:
        DiskFull: it does not fit; what had the name before keeps it.
    """
    unfinished = path.with_name(f".{path.name}.{_host()}.{os.getpid()}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _name(unfinished, path, first)
        fsync_folder(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(f"{path} does not fit on the disk: make room and call again, what is done stays.") from error
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def sweep(folder: Path, name: str | None = None) -> None:
    """Removes what processes that were killed have left unfinished of a file of this name, or of all."""
    for path in folder.glob(f".{'*' if name is None else escape(name)}.*{UNFINISHED}"):
        host, pid = path.name.removesuffix(UNFINISHED).rsplit(".", 2)[-2:]
        try:
            if not _runs(int(pid)) if host == _host() else path.stat().st_mtime < time.time() - GIVEN_UP_S:
                path.unlink()
        except (FileNotFoundError, ValueError):  # just finished by its process, or none of ours
            continue


def _name(unfinished: Path, path: Path, first: bool) -> None:
    if not first:
        unfinished.replace(path)
        return
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links: one of several that begin at once may be overtaken
        if not path.exists():
            unfinished.replace(path)


def _host() -> str:
    return socket.gethostname().replace(".", "-")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
