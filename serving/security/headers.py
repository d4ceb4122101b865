"""Security headers of every response. Headers that a response already has are kept."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from .access import PAGE

ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=(), payment=(), usb=()",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
# Gradio needs inline scripts, and eval for templates that it compiles in the browser
GRADIO = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "connect-src 'self' data: blob:; object-src 'none'; frame-ancestors 'none'; base-uri 'self'; form-action 'self'"
)
EXPOSED = (
    "Location, Retry-After, Server-Timing, X-Request-Id, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    "x-ratelimit-reset-requests, x-ratelimit-limit-images, x-ratelimit-remaining-images, x-ratelimit-reset-images"
)


def with_security_headers(scope: Scope, send: Send, origin: str | None, frames: Sequence[str] = ()) -> Send:
    """Wrap `send` to add the headers to the start of a response.

    Args:
        origin: another origin that may read the response (CORS).
        frames: origins whose pages may embed ours. Browsers that know frame-ancestors ignore X-Frame-Options.
    """
    path: str = scope["path"]

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in ALWAYS.items():
                headers.setdefault(name, value)
            headers.setdefault("Content-Security-Policy", _policy(path, frames))
            if not path.startswith((f"{PAGE}/assets/", f"{PAGE}/static/")):  # Gradio's static files may be cached
                headers.setdefault("Cache-Control", "no-store")
            if origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
                headers["Access-Control-Expose-Headers"] = EXPOSED
                headers.add_vary_header("Origin")
        await send(message)

    return with_headers


def preflight(origin: str) -> dict[str, str]:
    """Return the headers that let another origin send its request, which still needs a key."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Accept, Idempotency-Key, X-Request-Id",
        "Access-Control-Max-Age": "600",
        "Vary": "Origin",
    }


def _policy(path: str, frames: Sequence[str]) -> str:
    if path == PAGE or path.startswith(f"{PAGE}/"):
        return GRADIO.replace("frame-ancestors 'none'", f"frame-ancestors {' '.join(frames)}") if frames else GRADIO
    return NOTHING
