"""The pages of GET and POST /login and POST /logout: plain HTML without scripts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from nnclr_hub.errors import RequestTooSlow

from .keys import Key
from .problems import Refused, status_of

LOGIN, LOGOUT = "/login", "/logout"
MAX_FORM = 4096  # bytes
FORM_S = 10.0
_STYLE = (
    "body{font-family:system-ui,sans-serif;max-width:26rem;margin:15vh auto;padding:0 1rem;color:#1f2937}"
    "input,button{font:inherit;padding:.6rem;box-sizing:border-box;width:100%;margin-top:.5rem;border-radius:.4rem;"
    "border:1px solid #6b7280}button{background:#c2410c;color:#fff;border:0;cursor:pointer}"
    "[role=alert]{color:#b91c1c}"
)
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_NEXT = ("/", "/docs")


def to_login(path: str) -> Response:
    """Redirect to the form, which leads back to the path afterwards."""
    return RedirectResponse(f"{LOGIN}?next={quote(_next(path), safe='')}", 303)


def form(request: Request, known: Key | None) -> Response:
    """Return the login form, or a log-out button if the browser is logged in."""
    if known is not None:
        button = f'<form method="post" action="{LOGOUT[1:]}"><button>Log out</button></form>'
        content = f"<p>You are logged in as {html.escape(known.name)}.</p><p><a href='./'>Open the app</a></p>"
        return _page(content + button)
    return _page(_key_form(_next(request.query_params.get("next", ""))))


async def read_form(request: Request) -> tuple[str, str]:
    """Return the key from the form, and the path to open afterwards.

    Raises:
        RequestTooSlow: the form did not arrive in time.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(FORM_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM:
                    return "", _next("")
    except TimeoutError as error:
        raise RequestTooSlow(f"The login form did not arrive within {FORM_S:g} s; send it again.") from error
    try:
        fields = parse_qs(body.decode("latin-1"), max_num_fields=4)
    except ValueError:  # more fields than the form has
        fields = {}
    return fields.get("key", [""])[0].strip(), _next(fields.get("next", [""])[0])


def refused(error: Refused, target: str) -> Response:
    """Return the form with an error message."""
    page = _page(f'<p role="alert">{html.escape(str(error))}</p>' + _key_form(target), status_of(error))
    page.headers.update(error.headers)
    return page


def _next(path: str) -> str:
    """Return the path if it is one of our pages, or the start page: a login must not redirect elsewhere."""
    return path if path in _NEXT else "/"


def _key_form(target: str) -> str:
    return (
        f'<form method="post" action="{LOGIN[1:]}"><label for="key">Your key for this server</label>'
        '<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>'
        f'<input name="next" type="hidden" value="{html.escape(target)}"><button>Log in</button></form>'
    )


def _page(content: str, status: int = 200) -> Response:
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>nnclr_hub: log in</title><style>{_STYLE}</style><h1>nnclr_hub</h1>{content}</html>"
    )
    return HTMLResponse(text, status, {"Content-Security-Policy": _POLICY})
