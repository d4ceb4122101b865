"""UploadFolder: the folder for files that visitors upload to the page, limited in size and age.

    folder = UploadFolder()             # for this process only; removed when its `lifespan` ends
    app = folder.limit(app)             # answers 429 to uploads while the folder is full

Gradio never deletes uploads, and loses track of interrupted ones and of unexpected form fields. This class therefore
scans the folder instead of keeping a list: it deletes every file that is older than an hour.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MAX_AGE_S = 3600
SWEEP_EVERY_S = 300
MAX_BYTES = 500_000_000
PREFIX = "nnclr_page_"
MIN_FILE_BYTES = 64 * 1024  # each file counts at least this much, since many small files also cost disk and time


class UploadFolder:
    """The folder into which Gradio puts uploads from now on.

    Args:
        max_bytes: above this size, new uploads are rejected until older ones expire.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        _remove_abandoned()
        self.path, self._lock = _create()
        self._max_bytes = max_bytes
        os.environ["GRADIO_TEMP_DIR"] = str(self.path)

    def sweep(self) -> int:
        """Delete expired files; return the size in bytes of the remaining ones."""
        size, oldest = 0, time.time() - MAX_AGE_S
        for folder, _, names in os.walk(self.path, topdown=False):
            for name in names:
                file = Path(folder, name)
                try:
                    status = file.lstat()
                    if status.st_mtime < oldest:
                        file.unlink()
                    else:
                        size += max(status.st_size, MIN_FILE_BYTES)
                except FileNotFoundError:  # Gradio just renamed it to its final name
                    size += MIN_FILE_BYTES
        return size

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Sweep the folder regularly, and remove it at exit."""
        sweeping = asyncio.create_task(self._sweep_regularly())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True)
            os.close(self._lock)

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            await asyncio.to_thread(self.sweep)

    def limit(self, app: ASGIApp) -> ASGIApp:
        """Wrap an app: answer 429 to uploads while the folder is full."""

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            is_upload = scope["type"] == "http" and scope["method"] == "POST" and scope["path"].endswith("/upload")
            if is_upload and await asyncio.to_thread(self.sweep) >= self._max_bytes:
                full = PlainTextResponse("The page's upload space is full; try again later.", 429)
                full.headers["Retry-After"] = str(SWEEP_EVERY_S)
                await full(scope, receive, send)
                return
            await app(scope, receive, send)

        return limited


def _create() -> tuple[Path, int]:
    """Create a folder, and lock it for as long as this process lives."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _acquire(path)
        if lock is not None and path.exists():  # otherwise another process removed it as abandoned
            return path, lock


def _acquire(folder: Path) -> int | None:
    """Lock a folder; return None if another process holds it, or if it is not an existing folder."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _remove_abandoned() -> None:
    """Remove the folders of servers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if (lock := _acquire(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)  # another user's folder stays
            os.close(lock)
