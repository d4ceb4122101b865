"""Write files atomically, also while other processes write to the same folder."""

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
from nnclr_hub.store.disk import fsync_folder

UNFINISHED = ".unfinished"
ABANDONED_S = 24 * 3600  # after this time, the temporary file of another machine counts as abandoned


@contextmanager
def written_whole(path: Path, *, first: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file that is fsynced and renamed after the block, or deleted if the block fails.

    Args:
        first: keep an existing file of that name.

    Raises:
        DiskFull: the file does not fit; an existing file is kept.
    """
    unfinished = path.with_name(f".{path.name}.{_host()}.{os.getpid()}{UNFINISHED}")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not first:
            unfinished.replace(path)
        else:
            try:
                os.link(unfinished, path)
            except FileExistsError:
                pass
            except OSError:  # a file system without links: of several processes, the last one wins
                if not path.exists():
                    unfinished.replace(path)
        fsync_folder(path.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFull(
                f"{path} does not fit on the disk; free some space and call again, existing files are kept."
            ) from error
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def sweep(folder: Path, name: str | None = None) -> None:
    """Delete the temporary files of killed processes, for one file name or for all."""
    for path in folder.glob(f".{'*' if name is None else escape(name)}.*{UNFINISHED}"):
        host, pid = path.name.removesuffix(UNFINISHED).rsplit(".", 2)[-2:]
        try:
            if not _runs(int(pid)) if host == _host() else path.stat().st_mtime < time.time() - ABANDONED_S:
                path.unlink()
        except (FileNotFoundError, ValueError):  # just renamed by its process, or not a file of ours
            continue


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
