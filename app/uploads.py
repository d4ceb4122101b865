"""The folder of what visitors upload to the page, which Gradio would let grow for ever.

    folder = UploadFolder()             # of this process alone; gone when its `kept` ends
    app = folder.guarded(app)           # 429 to uploads while it is full

Gradio forgets uploads that break off and files that a form names otherwise than it asks for. So it is the folder
that is looked at, not a list: what is older than an hour goes, whoever put it there.
"""

from __future__ import annotations

import asyncio
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
LEAST = 64 * 1024  # bytes that a file counts for: each takes a place on the disk, and time to look at


class UploadFolder:
    """A folder that Gradio puts uploads into, from now on.

    Args:
        most_bytes: above, no more uploads are taken until some have gone.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="nnclr_page_"))
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
