"""The routes of Gradio's that the page uses; whatever else Gradio offers is not there.

It offers more than a page needs, some of it to do work for strangers or to fetch addresses for them, and each version
something new: so it is the routes in use that are listed. `file=` gives an upload back to who sent it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from fastapi.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = re.compile(
    r"/?|/(config/?|theme\.css|favicon\.ico|robots\.txt|(static|assets|svelte)/.*)"
    r"|/gradio_api/(queue/(join|data)|(run|api|call)/.*|cancel|reset/?|heartbeat/[^/]*|info/?|app_id/?|startup-events"
    r"|theme\.css|upload|upload_progress|file=(?!.*://).*)"
)


class Entrances:
    """The app behind them.

    Args:
        app: Gradio's, mounted somewhere.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"].removeprefix(scope.get("root_path", ""))):
            await PlainTextResponse("The page has nothing here.", 404)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Whether a path below the page is one of those that it uses, also if it is quoted once more."""
    return all(OPEN.fullmatch(one) is not None for one in (path, unquote(path)))
