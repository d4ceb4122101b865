"""The folder of what visitors upload to the page, which Gradio would let grow for ever.

    folder = UploadFolder()             # of this process alone; gone when its `kept` ends
    app = folder.guarded(app)           # 429 to uploads while it is full

Gradio forgets uploads that break off and files that a form names otherwise than it asks for. So it is the folder
that is looked at, not a list: what is older than an hour goes, whoever put it there.
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

KEPT_S = 3600
SWEPT_S = 300
MOST_BYTES = 500_000_000
PREFIX = "nnclr_page_"
LEAST = 64 * 1024  # bytes that a file counts for: each takes a place on the disk, and time to look at


class UploadFolder:
    """A folder that Gradio puts uploads into, from now on.

    Args:
        most_bytes: above, no more uploads are taken until some have gone.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        _remove_left_over()
        self.path, self._held = _made()
        self._most_bytes = most_bytes
        os.environ["GRADIO_TEMP_DIR"] = str(self.path)

    def sweep(self) -> int:
        """Removes what is too old; returns the bytes of what is left."""
        left, oldest = 0, time.time() - KEPT_S
        for folder, _, names in os.walk(self.path, topdown=False):
            for name in names:
                file = Path(folder, name)
                try:
                    status = file.lstat()
                    if status.st_mtime < oldest:
                        file.unlink()
                    else:
                        left += max(status.st_size, LEAST)
                except FileNotFoundError:  # renamed at this moment, to its last name
                    left += LEAST
        return left

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Swept for as long as this lasts, and removed afterwards."""
        sweeping = asyncio.create_task(self._sweep_for_ever())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.to_thread(shutil.rmtree, self.path, ignore_errors=True)
            os.close(self._held)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEPT_S)
            await asyncio.to_thread(self.sweep)

    def guarded(self, app: ASGIApp) -> ASGIApp:
        """The app, which takes uploads while there is room."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            uploads = scope["type"] == "http" and scope["method"] == "POST" and scope["path"].endswith("/upload")
            if uploads and await asyncio.to_thread(self.sweep) >= self._most_bytes:
                full = PlainTextResponse("The page holds as many uploads as it takes: try again later.", 429)
                full.headers["Retry-After"] = str(SWEPT_S)
                await full(scope, receive, send)
                return
            await app(scope, receive, send)

        return guarded


def _made() -> tuple[Path, int]:
    """A new folder, and the lock that says for as long as this process lives that it is in use."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        held = _lock(path)
        if held is not None and path.exists():  # else another process took it for left over
            return path, held


def _lock(folder: Path) -> int | None:
    """None if another process has it, or the folder is gone, or no folder."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


def _remove_left_over() -> None:
    """The folders of servers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if (held := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)  # somebody else's stays
            os.close(held)
