"""GET and POST /login, POST /logout: pages of plain HTML, without a script."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ..keys import Key
from .access import LOGIN, LOGOUT, PAGE
from .refusal import Refusal
from .session import Sessions

MAX_FORM = 4096
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
_NEXT = re.compile(rf"({PAGE}(/[\w./-]*)?|/docs)")


def to_login(path: str) -> Response:
    """Sends a person to the form, and back to the page afterwards."""
    return RedirectResponse(f"{LOGIN}?next={quote(_next(path), safe='')}", 303)


def form(request: Request, known: Key | None) -> Response:
    """The form; for one who is in, the way out."""
    if known is not None:
        button = f'<form method="post" action="{LOGOUT}"><button>Log out</button></form>'
        inside = f"<p>You are logged in as {html.escape(known.name)}.</p><p><a href='{PAGE}/'>To the page</a></p>"
        return _page(inside + button)
    return _page(_asked(_next(request.query_params.get("next", ""))))


async def sent_key(request: Request) -> tuple[str, str]:
    """The key that was typed into the form, and the page to go to."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM:
            return "", _next("")
    try:
        fields = parse_qs(body.decode("latin-1"), max_num_fields=4)
    except ValueError:  # more fields than the form has
        fields = {}
    return fields.get("key", [""])[0].strip(), _next(fields.get("next", [""])[0])


def refused(refusal: Refusal, then: str) -> Response:
    """The form again, with what was wrong."""
    page = _page(f'<p role="alert">{html.escape(refusal.detail)}</p>' + _asked(then), refusal.status)
    page.headers.update(refusal.headers)
    return page


def log_in(sessions: Sessions, key: Key, request: Request, then: str) -> Response:
    """Begins a session."""
    cookie = sessions.begin(key, secure=request.url.scheme == "https")
    return RedirectResponse(then, 303, {"Set-Cookie": cookie})


def log_out(sessions: Sessions, request: Request) -> Response:
    """Ends the session; a link alone does not, or any page could log a person out."""
    if request.method != "POST":
        return RedirectResponse(LOGIN, 303)
    cookie = sessions.end(request.headers, secure=request.url.scheme == "https")
    return RedirectResponse(LOGIN, 303, {"Set-Cookie": cookie, "Clear-Site-Data": '"cache"'})


def _next(path: str) -> str:
    """Where to go afterwards: a page of ours, whatever was asked for."""
    return path if _NEXT.fullmatch(path) and ".." not in path else f"{PAGE}/"


def _asked(then: str) -> str:
    return (
        f'<form method="post" action="{LOGIN}"><label for="key">Your key for this server</label>'
        '<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>'
        f'<input name="next" type="hidden" value="{html.escape(then)}"><button>Log in</button></form>'
    )


def _page(inside: str, status: int = 200) -> Response:
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>nnclr_hub: log in</title><style>{_STYLE}</style><h1>nnclr_hub</h1>{inside}</html>"
    )
    return HTMLResponse(text, status, {"Content-Security-Policy": _POLICY})
